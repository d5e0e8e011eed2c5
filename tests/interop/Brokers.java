import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.proxy.ProxyStartup;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/**
 * Runs RocketMQ brokers in one process, as a program asks for on standard input.
 *
 * Each line is a command, its words separated by tabs; each is answered by one line, "ok", or "failed" with a reason.
 * A broker is started as RocketMQ's own BrokerStartup does it, from a file of settings. End of input ends the process
 * at once, as a kill does.
 */
public class Brokers {
    private static final PrintStream OUT = System.out;
    private static final Map<String, BrokerController> BROKERS = new HashMap<>();
    private static NamesrvController nameServer;
    private static String names = "";

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // what RocketMQ prints is no answer
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = "ok\t" + answer(line.split("\t", -1));
            } catch (Throwable reason) {
                reason.printStackTrace();
                answer = "failed\t" + reason;
            }
            OUT.println(answer.replace("\n", " "));
            OUT.flush();
        }
        Runtime.getRuntime().halt(1);
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "names":
                return startNames();
            case "know":
                return names = words[1];
            case "known":
                return known(words[1]);
            case "proxy":
                return startProxy(words[1]);
            case "topics":
                return makeTopics(words[1], "MIXED", Arrays.asList(words).subList(2, words.length));
            case "topics of":
                return makeTopics(words[1], words[2], Arrays.asList(words).subList(3, words.length));
            case "start":
                return start(words[1], words[2]);
            case "timer":
                return timer(words[1], words[2], words[3], Long.parseLong(words[4]), words[5]);
            case "delete":
                return delete(words[1], words[2], words[3], Long.parseLong(words[4]));
            case "level":
                return level(words[1], words[2], words[3], Integer.parseInt(words[4]), words[5]);
            case "send":
                return send(words[1], Long.parseLong(words[2]), words[3]);
            case "recall":
                return recall(words[1], words[2]);
            case "consume":
                return consume(words[1], words[2], words[3], Long.parseLong(words[4]), Arrays.asList(words).subList(5, words.length));
            case "linked":
                return linked(words[1]);
            case "timers":
                return timers(words);
            case "deletes":
                return deletes(words);
            case "due":
                return due(words[1], words[2], Integer.parseInt(words[3]));
            case "stop":
                return stop(Arrays.copyOfRange(words, 1, words.length));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static String startNames() throws Exception {
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(0);
        server.setBindAddress("127.0.0.1");
        NamesrvController controller = new NamesrvController(new NamesrvConfig(), server);
        controller.initialize();
        controller.start();
        nameServer = controller;
        names = "127.0.0.1:" + server.getListenPort();
        return names;
    }

    /** Starts a proxy beside the brokers, from a file of settings; there is one in a process. */
    private static String startProxy(String settings) throws Exception {
        ProxyStartup.main(new String[] {"-pm", "cluster", "-n", names, "-pc", settings});
        return "";
    }

    /** Makes topics of a broker for a type of messages; MIXED take timers from clients that speak gRPC. */
    private static String makeTopics(String broker, String type, List<String> names) {
        for (String name : names) {
            TopicConfig topic = new TopicConfig(name, 1, 1);
            topic.setAttributes(new HashMap<>(Map.of("+message.type", type)));
            BROKERS.get(broker).getTopicConfigManager().updateTopicConfig(topic);
            BROKERS.get(broker).registerSingleTopicAll(topic);
        }
        return "";
    }

    /** Builds a broker as its own program does. From 5.5 on that parses the command line apart. */
    private static BrokerController build(String[] line) throws Exception {
        Object given = line;
        Class<?> taken = String[].class;
        for (Method each : BrokerStartup.class.getMethods()) {
            if (each.getName().equals("parseCmdLine")) {
                given = each.invoke(null, (Object) line);
                taken = each.getReturnType();
            }
        }
        return (BrokerController) BrokerStartup.class.getMethod("buildBrokerController", taken).invoke(null, given);
    }

    /** Answers with the commit log's start and end, as the broker found them. */
    private static String start(String name, String settings) throws Exception {
        BrokerController controller = build(new String[] {"-c", settings});
        controller.getBrokerConfig().setNamesrvAddr(names.isEmpty() ? null : names);
        if (!controller.initialize()) {
            throw new IllegalStateException("the broker did not load " + settings);
        }
        String found = controller.getMessageStore().getMinPhyOffset() + "\t" + controller.getMessageStore().getMaxPhyOffset();
        controller.start();
        if (nameServer != null) {
            known(controller.getBrokerConfig().getBrokerName());
        }
        BROKERS.put(name, controller);
        return found;
    }

    /** Waits until the name server of this process knows a broker; clients would not find it before. */
    private static String known(String broker) throws Exception {
        while (!nameServer.getRouteInfoManager().getAllClusterInfo().getBrokerAddrTable().containsKey(broker)) {
            Thread.sleep(50); // the caller limits the time
        }
        return broker;
    }

    /** Stops brokers side by side, for each waits much. */
    private static String stop(String[] stopped) throws Exception {
        List<Thread> stopping = new ArrayList<>();
        for (String name : stopped) {
            stopping.add(new Thread(BROKERS.remove(name)::shutdown));
        }
        for (Thread each : stopping) {
            each.start();
        }
        for (Thread each : stopping) {
            each.join();
        }
        return "";
    }

    // --- a broker's own store, without a client

    private static MessageExtBrokerInner message(BrokerController controller, String topic, String key, String body) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(0);
        message.setBody(body.getBytes(StandardCharsets.UTF_8));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(controller.getStoreHost());
        message.setStoreHost(controller.getStoreHost());
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, key);
        return message;
    }

    private static String put(BrokerController controller, MessageExtBrokerInner message) {
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        PutMessageResult result = controller.getMessageStore().putMessage(message);
        if (!result.isOk()) {
            throw new IllegalStateException(String.valueOf(result.getPutMessageStatus()));
        }
        return "";
    }

    private static String timer(String name, String topic, String key, long dueMs, String body) {
        BrokerController controller = BROKERS.get(name);
        MessageExtBrokerInner message = message(controller, topic, key, body);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TIMER_DELIVER_MS, String.valueOf(dueMs));
        return put(controller, message);
    }

    /** As RecallMessageProcessor does it. */
    private static String delete(String name, String topic, String key, long dueMs) {
        BrokerController controller = BROKERS.get(name);
        return put(controller, deleting(controller, topic, key, dueMs));
    }

    private static MessageExtBrokerInner deleting(BrokerController controller, String topic, String key, long dueMs) {
        MessageExtBrokerInner message = message(controller, topic, key, "0");
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TIMER_DEL_UNIQKEY, topic + "+" + key);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TIMER_DELIVER_MS, String.valueOf(dueMs));
        return message;
    }

    /** Puts many timers: NAME, TOPIC, then a due time, a key and a body for each; syncs to the disk are shared. */
    private static String timers(String[] words) {
        BrokerController controller = BROKERS.get(words[1]);
        List<CompletableFuture<PutMessageResult>> puts = new ArrayList<>();
        for (int i = 3; i < words.length; i += 3) {
            MessageExtBrokerInner message = message(controller, words[2], words[i + 1], words[i + 2]);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_TIMER_DELIVER_MS, words[i]);
            puts.add(putSoon(controller, message));
        }
        return joined(puts);
    }

    /** Deletes many timers: NAME, TOPIC, then a due time and a key for each. */
    private static String deletes(String[] words) {
        BrokerController controller = BROKERS.get(words[1]);
        List<CompletableFuture<PutMessageResult>> puts = new ArrayList<>();
        for (int i = 3; i < words.length; i += 2) {
            puts.add(putSoon(controller, deleting(controller, words[2], words[i + 1], Long.parseLong(words[i]))));
        }
        return joined(puts);
    }

    private static CompletableFuture<PutMessageResult> putSoon(BrokerController controller, MessageExtBrokerInner message) {
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return controller.getMessageStore().asyncPutMessage(message);
    }

    private static String joined(List<CompletableFuture<PutMessageResult>> puts) {
        for (CompletableFuture<PutMessageResult> put : puts) {
            if (!put.join().isOk()) {
                throw new IllegalStateException(String.valueOf(put.join().getPutMessageStatus()));
            }
        }
        return "";
    }

    /** Answers with the bodies that fired since it was asked before, some of them; notes that they are consumed. */
    private static String due(String name, String topic, int most) {
        BrokerController controller = BROKERS.get(name);
        long from = Math.max(0, controller.getConsumerOffsetManager().queryOffset("bench", topic, 0));
        GetMessageResult found = controller.getMessageStore().getMessage("bench", topic, 0, from, most, null);
        List<String> bodies = new ArrayList<>();
        if (found != null) {
            try {
                for (ByteBuffer each : found.getMessageBufferList()) {
                    bodies.add(new String(MessageDecoder.decode(each).getBody(), StandardCharsets.UTF_8));
                }
            } finally {
                found.release();
            }
            controller.getConsumerOffsetManager().commitOffset("bench", "bench", topic, 0, from + bodies.size());
        }
        return String.join("\t", bodies);
    }

    private static String level(String name, String topic, String key, int level, String body) {
        BrokerController controller = BROKERS.get(name);
        MessageExtBrokerInner message = message(controller, topic, key, body);
        message.setDelayTimeLevel(level);
        return put(controller, message);
    }

    /** Tells whether each message of the timer topic has its unit. */
    private static String linked(String name) throws Exception {
        TimerMessageStore timers = BROKERS.get(name).getTimerMessageStore();
        return timers.getCommitQueueOffset() + "\t" + BROKERS.get(name).getMessageStore().getMaxOffsetInQueue(TimerMessageStore.TIMER_TOPIC, 0);
    }

    // --- through RocketMQ's client

    private static DefaultMQProducer producer;

    private static DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("producers");
            producer.setNamesrvAddr(names);
            producer.start();
        }
        return producer;
    }

    private static String send(String topic, long dueMs, String body) throws Exception {
        Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
        message.setDeliverTimeMs(dueMs);
        return producer().send(message).getRecallHandle();
    }

    private static String recall(String topic, String handle) throws Exception {
        return producer().recallMessage(topic, handle);
    }

    /**
     * Consumes for a while, or until a second after all came that is wanted, if something is. What begins with "fail" fails and comes again after five seconds; others are
     * acknowledged. After one second it could come sixteen times within twenty seconds, and be a dead letter.
     *
     * Answers with each body that came, and how often it had come before: "body:times", separated by tabs.
     */
    private static String consume(String group, String topic, String mode, long forMs, List<String> wanted) throws Exception {
        List<String> came = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(names);
        consumer.setHeartbeatBrokerInterval(1_000); // what it reads changes, and the broker is told by the next one
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                String body = new String(each.getBody(), StandardCharsets.UTF_8);
                came.add(body + ":" + each.getReconsumeTimes());
                if (mode.equals("failing") && body.startsWith("fail")) {
                    context.setDelayLevelWhenNextConsume(2);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long stop = System.currentTimeMillis() + forMs;
        while (System.currentTimeMillis() < stop && (wanted.isEmpty() || !came.containsAll(wanted))) {
            Thread.sleep(100);
        }
        if (!wanted.isEmpty()) {
            Thread.sleep(1_000); // what should not come has time to come
        }
        consumer.shutdown();
        return String.join("\t", came);
    }
}
