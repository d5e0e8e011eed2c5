"""How bytes reach a disk: files, maps, locks; small files, which are read whole.

segments.py       a log over segment files: how it is read, pinned, flushed, removed
segmenttable.py   by which kernels find a byte of it
blocks.py         its maps, which may be dropped while kernels look; blocks, allocated ahead
disk.py           the one place through which bytes reach a disk
memory.py         how much memory this process may still use, how many maps a store
names.py          the names that files of a store can have
nonzero.py        at which index memory that others may change is not zero
smallfile.py      small files read whole
reader_end.py     small files as of one moment: a reader's end
lockfile.py       one process at a time has a store open
folders.py        descriptors: of a store's folder, of the lock on a log's, with an owner
jsonfile.py       JSON that a broker reads or writes
checkpoint.py     which cursors are durable, what a store was made with, what a close left
refuse_rocksdb.py refuses what a broker keeps in RocksDB, or in batch consume queues
oserrors.py       what the operating system refuses, told as an error of ours
"""
