-- looks at: drift
-- measures: the population stability index of how late the last day's timers fired
-- means: The machine or its disk is busier than before, or the program did not run.
-- do: See timerstore top.
-- warn: 0.25
-- fail: 1
-- least: 1000
-- says: Against {runs:earlier run} the index of lateness is {value:.2f}.
-- none: Too few earlier runs to compare with, or fewer than {least:timer}.
SELECT store, value, timers AS checked, runs FROM drift WHERE profile = 'late'
