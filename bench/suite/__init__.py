"""What a developer changes, a stage at a time, each beside a reference of the same round.

    rig.py             a stage beside its reference; a store that a stage works on
    bench_files.py     messages, chains, tables
    bench_services.py  services one by one, opening; what has fired, handed to a program
    bench_calls.py     a program's calls

`suites.py` runs them and judges.
"""
