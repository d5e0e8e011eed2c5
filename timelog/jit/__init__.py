"""The compiler's corner: all that touches Numba or LLVM, what kernels are made with.

No other folder imports either, and here only the modules that are marked (n), which are imported
when something has to be compiled. What is taken of their internals may be missing in
another version: then kernels are compiled more slowly, see `compilers.py`.

    kernel.py       the decorator that compiles one
    later.py        what stands for what Numba makes until it is needed
    dispatchers.py  what Numba makes of it (n)
    signatures.py   its types, read off its annotations (n)
    arraytypes.py   the arrays that annotations name
    compilers.py    which of two ways of linking is taken (n)
    linking.py      ours: how helpers become part of it (n)
    trial.py        a trial of it, for a Numba that is new (n)
    packaged.py     what a wheel brings: machine code that needs no Numba
    processor.py    the levels of processors for which it does
    packing.py      how it is made (n)
    packedentry.py  what calls it from Python (n)
    numpylayout.py  how NumPy lays out what it is called with
    apart.py        work that no exception of its caller reaches
    stamp.py        the digest of what it sees
    cachefile.py    the file in which it is cached (n)
    cachefolder.py  where that is if nothing of ours can be written (n)
    installed.py    where the package is
    entrypoint.py   calling it by its bare entry point
    record.py       groups of fields that it receives as one pointer
    recordtype.py   their type for Numba (n)
    table.py        such groups whose fields are columns
    acting.py       who may write them
    objects.py      where CPython keeps the bytes of its objects
    lent.py         arrays that are replaced while it runs
    mapping.py      mappings, each with its owner
    locks.py        locks that it takes
    guards.py       what gives a lock back, whatever ends its block
    intrinsics.py   what only an instruction can say
    codegen.py      the LLVM code of that (n)
    crc.py          CRC-32 of bytes
    crcfold.py      the same by carry-less multiplication, as LLVM code (n)
    system.py       its own calls to the operating system
"""
