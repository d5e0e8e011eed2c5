import java.io.File;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Has RocketMQ's own message store index some messages: what its index files hold is tests/golden/index.json.
 *
 * <pre>WriteIndex DIRECTORY SLOTS ENTRIES</pre>
 *
 * Prints one JSON object: the messages, with where they went, and each file of index/ in hex.
 */
public class WriteIndex {
    private static final String[] KEYS = {
        "user:7", "user:8", "user:7", "two words", " blanks  around ", "", null, "\u00e4\u00f6\u20ac\ud83d\ude00",
        "FB", "Ea", "polygenelubricants", "user:7", "order 42 order", "a", "b", "c", "d", "e", "f", "g", "h",
    };

    public static void main(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(1 << 20);
        config.setMappedFileSizeConsumeQueue(2_000);
        config.setMaxHashSlotNum(Integer.parseInt(args[1]));
        config.setMaxIndexNum(Integer.parseInt(args[2]));
        config.setMessageIndexEnable(true);
        config.setHaListenPort(0);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("rig", true), (topic, queue, offset, tags, time, bits, properties) -> { },
            new BrokerConfig(), new ConcurrentHashMap<>());
        store.load();
        store.start();
        StringBuilder out = new StringBuilder("{\"messages\": [");
        String[] topics = {"rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"};
        for (int i = 0; i < 2 * KEYS.length; i++) {
            String topic = topics[i % 2];
            String key = KEYS[i / 2];
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(topic);
            message.setBody(("body " + i).getBytes(StandardCharsets.UTF_8));
            message.setQueueId(0);
            message.setBornHost(new InetSocketAddress("127.0.0.1", 0));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 0));
            message.setBornTimestamp(System.currentTimeMillis());
            String unique = i % 5 == 4 ? null : String.format("UNIQUE%026d", i);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_REAL_TOPIC, "orders");
            if (unique != null) {
                MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, unique);
            }
            if (key != null) {
                MessageAccessor.putProperty(message, MessageConst.PROPERTY_KEYS, key);
            }
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            PutMessageResult result = store.putMessage(message);
            out.append(i == 0 ? "" : ",").append("\n {\"topic\": ").append(quote(topic));
            out.append(", \"unique\": ").append(quote(unique)).append(", \"keys\": ").append(quote(key));
            out.append(", \"offset\": ").append(result.getAppendMessageResult().getWroteOffset());
            out.append(", \"stored_ms\": ").append(result.getAppendMessageResult().getStoreTimestamp()).append("}");
            Thread.sleep(i % 7 == 6 ? 700 : 1);
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(50);
        }
        Thread.sleep(1_000);
        store.shutdown();
        out.append("],\n\"slots\": ").append(args[1]).append(", \"entries\": ").append(args[2]).append(", \"files\": {");
        File[] files = new File(args[0], "index").listFiles();
        Arrays.sort(files);
        for (File file : files) {
            out.append(file == files[0] ? "" : ",").append("\n ").append(quote(file.getName())).append(": \"");
            for (byte each : Files.readAllBytes(file.toPath())) {
                out.append(String.format("%02x", each));
            }
            out.append("\"");
        }
        Files.write(new File(args[0], "index.json").toPath(), out.append("}}\n").toString().getBytes(StandardCharsets.UTF_8));
        System.exit(0);
    }

    private static String quote(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            quoted.append(each < 128 ? String.valueOf(each) : String.format("\\u%04x", (int) each));
        }
        return quoted.append("\"").toString();
    }
}
