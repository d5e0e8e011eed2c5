"""A narrow client of a RocketMQ cluster, for a program that outgrew its store.

    cluster.py    the public class, with the calls that a cluster can do
    sending.py    putting: one message, or many at the same time; ids by which a broker recalls;
                  what is pending in a store, sent to a cluster
    receiving.py  messages of one topic for one group, as a program sees them
    clustersource.py  the same, as a consumer does
    library.py    RocketMQ's own client, which the extra `[rocketmq]` installs, and what is used of
                  it

It stands beside the store: it opens none. docs/howto/rocketmq.md says what is not there.
"""

from timerstore.rocketmq.cluster import Cluster, connect
from timerstore.watching.common_calls import CommonCalls

__all__ = ["Cluster", "CommonCalls", "connect"]
