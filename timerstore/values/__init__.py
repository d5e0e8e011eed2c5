"""What all rooms stand on: values that go into calls, come out of them, are shown.

    check_arguments.py what calls are given, checked
    puts.py            what a put is given: as one row, as JSON, as columns; when it moves
    kinds.py           kinds of arguments that many calls share; instants, lengths of time
    config.py          settings
    write_file.py      a file that appears once it is whole
    ids.py             ids of timers, as text or as columns
    amounts.py         amounts, times, names as text for people
    blocked_loop.py    a call that blocks an event loop is logged
    times.py           the times that a person types
    lazy_names.py      names of a package, loaded when they are asked for
    no_pickle.py       objects that stay in their process
    sparkdaemon.py     the process that Spark forks its Python workers from

Nothing here knows of an open store; the services use the settings.
"""
