"""What a broker needs of a store that is handed over to it.

broker_damage.py   what a broker would not read past: refused before anything is changed
cut_chains.py      superseded units, taken out of their slots
full_files.py      last units of full files, by which a broker removes them
reached.py         goes through slots as a broker does: each timer once
broker_deletes.py  deletes beside their timers
"""
