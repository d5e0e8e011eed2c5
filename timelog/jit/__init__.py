"""The compiler's corner: all that touches Numba or LLVM, what kernels are made with.

No other folder imports either. What is taken of their internals may be missing in another version:
then kernels are compiled more slowly, see `compilers.py`.

    kernel.py       the decorator that compiles one
    signatures.py   its types, read off its annotations
    compilers.py    which of two ways of linking is taken
    linking.py      ours: how helpers become part of it
    trial.py        a trial of it, for a Numba that is new
    apart.py        work that no exception of its caller reaches
    stamp.py        the digest of what it sees
    cachefolder.py  where it is cached if nothing of ours can be written
    entrypoint.py   calling it by its bare entry point
    record.py       groups of fields that it receives as one pointer
    table.py        such groups whose fields are columns
    acting.py       who may write them
    objects.py      where CPython keeps the bytes of its objects
    mapping.py      mappings, each with its owner
    locks.py        locks that it takes
    intrinsics.py   what only an instruction can say
    crc.py          CRC-32 of bytes
    crcfold.py      the same by carry-less multiplication, as LLVM code
    system.py       its own calls to the operating system
"""
