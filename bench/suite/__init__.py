"""What a developer changes, a stage at a time, each beside a reference of the same round.

    rig.py             a stage beside its reference; a store that a stage works on
    bench_kernels.py   checksums, digits, hash sets
    bench_codec.py     messages framed, then read; ids as text
    bench_segments.py  bytes found in segments, segments made, queues read
    bench_wheel.py     slots found and linked, the near wheel
    bench_chains.py    chains walked, the timer log scanned
    bench_services.py  services one by one
    bench_calls.py     a program's calls
    bench_consumer.py  what has fired, handed to a program
    bench_tables.py    tables of Arrow batches

`suites.py` runs them and judges.
"""
