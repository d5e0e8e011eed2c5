"""A timer's way from put to fired, service by service.

enqueue_get.py     reads the timer topic's queue, into the enqueue ring
enqueue_put.py     links a unit for each timer into its slot
dequeue_get.py     takes what is due out of the wheel, into the dequeue ring; rolls hop
dequeue_put.py     appends what was taken: it fires
deliver_levels.py  appends what delay levels hold, when its time has come
copying.py         what the last two do alike
"""
