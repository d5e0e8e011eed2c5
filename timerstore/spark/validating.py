"""A validation on Spark (`timerstore/validation/onspark.py`), of one store."""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import SparkSession

from timerstore.audit.own import read_rules
from timerstore.copies.destination import is_copy
from timerstore.tables.view import forget
from timerstore.validation.files import finish
from timerstore.validation.onspark import run
from timerstore.validation.ownrules import ask_own, check_own
from timerstore.validation.plain import validate as plainly
from timerstore.validation.plan import SPLIT_BYTES, make_plan
from timerstore.validation.result import Validation
from timerstore.values.config import DELAY_LEVELS


def validate(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    upto: str | None = None,
    delay_levels: str = DELAY_LEVELS,
    roll_window_slots: int | None = None,
    split_bytes: int = SPLIT_BYTES,
    rules: str | os.PathLike[str] | None = None,
) -> Validation:
    """Check that the parts of a store agree with each other, on Spark's workers.

    All of them must see the store's files under the same path. The options, and the result, are
    those of `timerstore.validation.validate`; each rule has one definition. A backup or a standby
    is read in this process, which needs the extra `audit`. Raises NotAStoreError, ImportError;
    damage is in the result. O(bytes); some 200 bytes for each timer are kept until it ends.

    >>> timerstore.spark.validate(spark, "timers/").ok
    True
    """
    options: dict[str, Any] = {
        "upto": upto,
        "delay_levels": delay_levels,
        "roll_window_slots": roll_window_slots,
        "split_bytes": split_bytes,
    }
    if is_copy(path):
        return plainly(path, rules=rules, **options)
    own = read_rules(rules)
    check_own(own, spark)
    plan = make_plan(path, **options)
    try:
        tally = run(spark, plan)
        finish(plan.scope, tally)
        found = ask_own(own, os.path.abspath(path), upto, delay_levels, spark)
        return Validation.make(plan.scope, tally, found)
    finally:
        forget(plan.scope.cut)
