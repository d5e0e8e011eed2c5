import java.io.File;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.store.timer.TimerCheckpoint;
import org.apache.rocketmq.store.timer.TimerMessageStore;
import org.apache.rocketmq.store.timer.TimerMetrics;

/**
 * Opens a directory with RocketMQ's own message store and timer store, lets it fire for a while, and closes it.
 *
 * <pre>OpenStore DIRECTORY SECONDS PRECISION_MS ROLL_SLOTS LOG_BYTES QUEUE_BYTES TIMER_LOG_BYTES [TOPIC ...]</pre>
 *
 * Prints what it found, and what each topic's queue 0 holds in the end. With 0 seconds it says where the log lies,
 * and starts nothing.
 */
public class OpenStore {
    public static void main(String[] args) throws Exception {
        String root = args[0];
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setTimerWheelEnable(true);
        config.setTimerPrecisionMs(Integer.parseInt(args[2]));
        config.setTimerRollWindowSlot(Integer.parseInt(args[3]));
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[4]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[5]));
        config.setMappedFileSizeTimerLog(Integer.parseInt(args[6]));
        config.setHaListenPort(0); // any port that is free: nobody replicates
        config.setTimerStopEnqueue(false);
        config.setCheckCRCOnRecover(true);
        BrokerStatsManager stats = new BrokerStatsManager("rig", true);
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        DefaultMessageStore store = new DefaultMessageStore(
            config, stats, (topic, queue, offset, tags, time, bits, properties) -> { }, new BrokerConfig(), topics);
        TimerMessageStore timers = new TimerMessageStore(
            store, config, new TimerCheckpoint(root + "/config/timercheck"),
            new TimerMetrics(root + "/config/timermetrics"), stats);
        store.setTimerMessageStore(timers);
        boolean loaded = store.load() & timers.load();
        System.out.println("loaded " + loaded);
        System.out.println("log " + store.getMinPhyOffset() + " " + store.getMaxPhyOffset());
        int seconds = Integer.parseInt(args[1]);
        if (seconds == 0) {
            System.exit(0);
        }
        store.start();
        timers.start(true);
        System.out.println("timers " + timers.getAllCongestNum());
        Thread.sleep(1000L * seconds);
        System.out.println("log " + store.getMinPhyOffset() + " " + store.getMaxPhyOffset());
        List<String> asked = new ArrayList<>();
        for (int i = 7; i < args.length; i++) {
            asked.add(args[i]);
        }
        for (String topic : asked) {
            System.out.println("queue " + topic + " " + store.getMinOffsetInQueue(topic, 0) + " " + store.getMaxOffsetInQueue(topic, 0));
        }
        timers.shutdown();
        store.shutdown();
        System.out.println("closed");
        System.exit(0);
    }
}
