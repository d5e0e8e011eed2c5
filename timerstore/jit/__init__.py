"""The compiler's corner: all that touches Numba or LLVM, what kernels are made with.

No other folder imports either, and here only the modules that are marked (n), which are imported
when something has to be compiled, or loaded from a cache.

    kernel.py       the decorator that compiles one
    loading.py      how Python comes to call it; the digest of what it sees
    later.py        what stands for what Numba makes until it is needed
    cachefolder.py  where its machine code is cached, and the package is
    llvm_engine.py  LLVM, which brings that into memory (n)
    linking.py      how it, and helpers that become part of it, are compiled (n)
    packedentry.py  what calls it from Python (n)
    packaged.py     what a wheel brings: a library of all, for a level of processors
    packing.py      how that is made (n)
    numpylayout.py  how NumPy lays out what it is called with
    record.py       groups of fields that it receives as one pointer, who may write them; tables
    recordtype.py   their type for Numba, and those that annotations say (n)
    objects.py      where CPython keeps the bytes of its objects
    mapping.py      mappings, each with its owner; arrays that are replaced while it runs
    locks.py        locks that it takes
    guards.py       what no exception leaves held, or half done
    intrinsics.py   what only an instruction can say
    codegen.py      the LLVM code of that (n)
    crc.py          CRC-32 of bytes, also of parts
    crcfold.py      the same by carry-less multiplication, as LLVM code (n)
    system.py       its own calls to the operating system
    host.py         what differs between systems
"""
