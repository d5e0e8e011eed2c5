"""What runs the services: a kernel, its threads, Python's part for them.

steps.py     the kernel that is a service's thread
runner.py    the threads of the services, what they ask Python for
prefetch.py  what falls due soon is read before it is due
"""
