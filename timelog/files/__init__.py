"""How bytes reach a disk: files, maps, locks; small files, which are read whole.

segments.py       a log over segment files: how it is read, flushed, removed
segmenttable.py   by which kernels find a byte of it
blocks.py         its maps; its blocks, allocated ahead and opened before a write
epochs.py         what is dropped while kernels look at it; what a forked child keeps
pinned.py         segments that stay in a table of one's own
disk.py           the one place through which bytes reach a disk
memory.py         how much memory this process may still use, how many maps a store
names.py          the names that files of a store can have
nonzero.py        at which index memory that others may change is not zero
lockfile.py       one process at a time has a store open
smallfile.py      small files read whole
reader_end.py     small files as of one moment: a reader's end
folders.py        descriptors: of a store's folder, of the lock on a log's, with an owner
jsonfile.py       JSON that a broker reads or writes
identity.py       what a store was made with: its tag, its sizes
checkpoint.py     which cursors are durable, levels' offsets, arrays as a clean close left them
refuse_rocksdb.py refuses what a broker keeps in RocksDB, or in batch consume queues
oserrors.py       what the operating system refuses, told as an error of ours
"""
