"""How much is played: what every change must pass, beside what `./run prove` looks for.

A test that takes long is marked `prove` by the tables below, because it plays a page, kills
repeatedly, or searches for what is rare. The others play fewer random histories until all is
proved.
"""

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

PROVING: Final = os.environ.get("PROVE", "0") not in ("", "0")

PROVED: Final = (
    # Pages of the site, each in a shell of its own, and examples beside their peers.
    "test_pages.py::test_a_page_does_what_it_says",
    "test_operate.py::test_commands_of_the_page",
    "test_readme.py::test_the_examples_of_a_page_run",
    "test_examples.py::test_side_by_side",
    "examples/test_reminder_service.py::test_it_does_what_is_asked_of_it",
    "examples/test_reminder_service.py::test_nothing_is_lost_where_workers_are_killed",
    "aio/test_fastapi.py::test_reminders",
    "test_dedup.py::test_the_work_is_done_once",
    # Storms and kills.
    "test_storm.py::test_nothing_freezes_and_counts_are_exact[2]",
    "test_storm.py::test_nothing_freezes_and_counts_are_exact[8]",
    "test_storm.py::test_queues_of_four_places",
    "test_storm.py::test_killed_with_queues_of_four_places",
    "test_kill.py::test_killed_again_and_again",
    "consumer/test_consumer_kill.py",
    "consuming/test_ackput_kill.py::test_killed_again_and_again",
    "backups/test_standby.py::test_wherever_a_promotion_ends",
    "backups/test_follow_kill.py::test_what_was_shipped_outlives_the_disk[s3]",
    "backups/test_follow.py::test_small_pieces_become_large_ones",
    "offline/test_backup.py::test_killed_in_the_middle_beside_a_busy_owner",
    "cli/test_importing.py::test_a_process_that_is_killed",
    "serving/test_serve_command.py",
    "interop/test_to_and_fro.py::test_each_timer_comes_once[stopped]",
    "interop/test_handed_over.py",
    "interop/test_broker.py",
    "interop/test_damaged.py",
    "interop/test_move.py::test_what_is_overdue_goes_to_a_topic_for_timers",
    "test_storm.py::test_nothing_freezes_and_counts_are_exact[64]",
    # Sizes, disks and ends, of which one stands for the others.
    "test_live.py",
    "test_full_disk.py::test_a_full_tmpfs_ends_nobody",
    "test_full_disk.py::test_a_folio_that_reaches_beyond_what_was_granted",
    "test_golden_cleaned.py::test_what_comes_out_is_the_same",
    "test_many_topics.py",
    "test_max_bytes.py::test_a_small_store_goes_on_within_its_limit",
    "tables/test_commitlog.py::test_splits_agree_about_damage",
    "jit/test_mapping.py::test_each_array_over_a_map_keeps_it",
    "services/test_aside.py::test_listing_cancelling_and_rescheduling_see_what_was_put_aside",
    "closing/test_close.py::test_threads_that_put_do_not_freeze_the_process",
    "test_burst.py::test_a_burst_fits_the_disk[keyed",
    "test_burst.py::test_a_burst_fits_the_disk[single-reopened",
    "bench/test_peers.py::test_those_in_this_process",
    # Commands in processes of their own, which take a second each.
    "cli/test_commands.py::test_no_reader_at_all_is_no_damage",
    "cli/test_commands.py::test_closed_standard_files_take_no_store_s_place",
    "cli/test_interrupted_commands.py::test_while_it_imports",
    # Spark: each table, a load, a stream and a validation always run.
    "spark/test_own_session.py::test_what_is_wrong_is_said_last",
    "spark/test_java.py::test_a_session_without_java",
    "spark/test_writing.py::test_refusals",
    "spark/test_writing.py::test_timestamps_and_texts",
    "spark/test_writing.py::test_the_stores_are_stores",
    "spark/test_writing.py::test_a_store_that_is_open_elsewhere",
    "spark/test_writing.py::test_a_failure_leaves_nothing[store]",
    "spark/test_streaming.py::test_each_row_once[messages]",
    "spark/test_streaming.py::test_from_the_latest",
    "spark/test_streaming.py::test_small_batches",
    "spark/test_validating.py::test_stores_that_were_made_up",
    "spark/test_cluster.py",
    "spark/test_connect.py",
    "spark/test_following.py::test_killed_between_any_two_files",
    "spark/test_following.py::test_the_command_is_killed_and_started_again",
    "spark/test_java.py::test_a_session_takes_the_classes_that_warmup_had_written_down",
    "spark/test_pipeline_on_spark.py::test_a_store_that_goes_meanwhile_is_a_row",
    "spark/test_pipeline_on_spark.py::test_spark_reads_what_was_written",
    "spark/test_pipeline_on_spark.py::test_stores_in_a_dataframe",
    # What is built from the repository.
    "jit/test_packing.py::test_nothing_else_is_run",
    "test_tidy.py::test_the_source_distribution_can_be_installed",
    "test_site.py::test_notebooks_have_their_pictures",
    "jit/test_packing.py::test_packed_kernels_do_what_kernels_do",
    "jit/test_objects.py::test_no_kernel_keeps_what_one_python_says_of_itself",
    "jit/test_cachefolder.py::test_starts_of_other_kinds_share_a_cache",
    "jit/test_cachefolder.py::test_what_was_compiled_for_an_image_is_used",
    "jit/test_cachefolder.py::test_a_temporary_folder_serves",
    "test_ahead.py::test_no_call_on_an_open_store_compiles_anything[handover]",
)
"""Where the names of such tests begin, below `tests/`."""

KEPT: Final = (
    "test_operate.py::test_commands_of_the_page[Is it healthy?]",
    "test_readme.py::test_the_examples_of_a_page_run[docs/consumer.md]",
    "test_kill.py::test_killed_again_and_again[cleaned]",
    "consuming/test_ackput_kill.py::test_killed_again_and_again[process]",
    "aio/test_fastapi.py::test_reminders[asyncio]",
    "test_dedup.py::test_the_work_is_done_once[sqlite3]",
    "test_live.py::test_openings[full]",
    "test_live.py::test_verifying[full]",
    "test_live.py::test_tables[full-messages]",
    "test_live.py::test_tables[full-slots]",
    "test_live.py::test_a_stream[full]",
    "test_full_disk.py::test_a_full_tmpfs_ends_nobody[4]",
    "test_full_disk.py::test_a_folio_that_reaches_beyond_what_was_granted[xfs]",
    "test_golden_cleaned.py::test_what_comes_out_is_the_same[crashed-abandon]",
    "test_many_topics.py::test_more_topics_than_descriptors[process]",
    "jit/test_packing.py::test_nothing_else_is_run[a byte",
    "jit/test_packing.py::test_nothing_else_is_run[a source",
    "jit/test_packing.py::test_nothing_else_is_run[bounds",
    "cli/test_commands.py::test_no_reader_at_all_is_no_damage[pending]",
    "cli/test_commands.py::test_no_reader_at_all_is_no_damage[export]",
    "cli/test_commands.py::test_no_reader_at_all_is_no_damage[--help]",
    "cli/test_commands.py::test_closed_standard_files_take_no_store_s_place[1>&-]",
    "cli/test_commands.py::test_closed_standard_files_take_no_store_s_place[0<&- 1>&- 2>&-]",
    "cli/test_interrupted_commands.py::test_while_it_imports[Ctrl-C",
    "cli/test_interrupted_commands.py::test_while_it_imports[SIGTERM-typer]",
    "closing/test_close.py::test_threads_that_put_do_not_freeze_the_process[process",
    "bench/test_peers.py::test_those_in_this_process[pending]",
)
"""Those among them that every change must pass."""

LONG: Final = (
    # Models of rules, and what storms and whole histories show too.
    *("test_jump_model.py", "test_reuse_model.py", "test_handover_model.py"),
    *("test_cleaning_model.py::test_history", "test_cleaning_model.py::test_it_cleans"),
    "test_rules_model.py::test_the_model_itself",
    "test_held.py::test_nothing_is_left_held",
    "pending/test_overtaken.py",
    *("pending/test_byid.py::test_many_threads", "pending/test_byid.py::test_both_ways_agree"),
    *("pending/test_unlinked.py", "pending/test_keyed.py::test_many_at_once_make_one"),
    *("test_interrupted.py", "test_interrupted_calls.py", "test_causes.py", "test_dropped.py"),
    "test_no_descriptors.py::test_what_the_flush_thread_does_goes_on_later",
    *("consumer/test_consumer_machine.py", "watching/test_groups.py::TestBacklogs"),
    "consuming/test_ackput.py::test_puts_over_many_segments_of_a_queue",
    "consuming/test_failures.py::test_shortened",
    # Kernels, which three modes play.
    "services/test_copying.py::test_copies_are_their_twins_over_all_segments",
    *("services/test_due_order.py", "timelog/test_frame.py::test_a_copy_closes_the_last_value"),
    *("timelog/test_epochs.py", "jit/test_mapping.py", "wheel/test_near.py"),
    # Copies, and tables of any cut.
    *("backups/test_after_a_takeover.py", "backups/test_crossed_copies.py"),
    *("backups/test_wrong_objects.py", "backups/test_copies_attacked.py"),
    *("offline/test_backup_machine.py", "offline/test_salvage.py"),
    *("tables/test_plan.py::test_any_cut_gives_the_same_rows", "tables/test_timers.py"),
    # Of the repository, the tests and the benches.
    *("test_tidy.py", "test_tidy_objects.py", "test_together.py", "test_warmup.py"),
    *("test_ahead.py", "test_typing.py", "test_interpreter.py", "bench/", "test_site.py"),
    "test_operate.py::test_every_question_is_checked",
    "test_public_face.py::test_examples_in_docstrings_run[timerstore.warmup]",
)
"""Seconds of a processor, of which quicker ones or `PROMISED` show the promise: marked `long`."""

PROMISED: Final = (
    "pending/test_overtaken.py::test_a_slow_listing_goes_on[1-60]",
    "pending/test_overtaken.py::test_keys_without_an_index[held-get_key-False]",
    "backups/test_after_a_takeover.py::test_promoted_while_it_is_followed",
    "test_interrupted_calls.py::test_no_call_keeps_others_out_wherever_it_was_ended[put]",
    "spark/test_source.py::test_golden",
    "spark/test_writing.py::test_into_one_store",
    "spark/test_validating.py::test_golden_stores[fired]",
    "spark/test_pipeline_on_spark.py::test_the_tables_are_those_of_one_process[100000]",
    "pipeline/test_distribution.py::test_it_fails_and_barely_does_not[slots_mapped]",
    "pipeline/test_pipeline_runs.py::test_killed_it_does_not_count_until_it_is_repeated",
    "test_readme.py::test_the_examples_do_what_the_page_says",
    "test_kill.py::test_killed_again_and_again[cleaned]",
    "test_storm.py::test_nothing_freezes_and_counts_are_exact[4]",
    "test_live.py::test_openings[full]",
    "test_flipped_bits.py",
    "test_full_disk.py::test_a_store_on_a_full_disk_makes_room[ext4]",
    "consuming/test_ackput_kill.py::test_killed_again_and_again[process]",
    "serving/test_shared.py",
    "examples/test_demo.py::test_demo",
)
"""Slow ones that `./run test` plays too, since nothing quicker shows what they do."""

WHOLE: Final = (
    "services/test_leap.py::test_what_is_put_after_a_leap_outlives_a_kill",
    "services/test_deliver_levels.py::test_retention_keeps_what_waits",
    "services/test_deliver_levels.py::test_levels_that_were_configured_otherwise",
    "services/test_deliver_levels.py::test_a_shorter_level_delivers_nothing_early_and_in_order",
    "services/test_retention.py::test_max_bytes_refuses_until_consumed",
    "services/test_retention.py::test_cleaning_carries_timers_out",
    "services/test_retention.py::test_id_leads_to_a_timer_whose_first_message_is_gone",
    "services/test_aside.py::test_what_falls_due_meanwhile_comes_first",
    "services/test_cleaning.py::test_far_timers_do_not_keep_the_log",
    "services/test_cleaning.py::test_a_pass_leaves_as_much_as_the_last_one_took",
    "services/test_cleaning.py::test_a_pass_goes_on_in_the_next_life",
    "services/test_recover_levels.py::test_a_cancelled_one_behind_a_longer_wait",
    "services/test_recovery.py::test_decision_table",
    "services/test_full_files.py",
    "services/test_hops.py::test_killed_at_each_slot",
    "services/test_retention.py::test_crash_while_removing",
    "services/test_linked_twice.py",
    "services/test_broker_damage.py",
    "services/test_late_units.py::test_what_a_broker_linked_late_is_pending",
    "services/test_due_order.py::test_what_is_due_at_one_millisecond_is_read_as_it_is_asked_for",
    "services/test_cleaning.py::test_hops_alone_begin_no_copying",
    "services/test_jump.py::test_a_clock_that_was_set_ahead_by_years_costs_hops",
    # Programs in processes of their own, which run no kernel.
    "jit/test_later.py::test_a_client_needs_no_compiler",
    "jit/test_later.py::test_a_client_that_puts_and_consumes_loads_no_engine",
)
"""Lives of whole stores that take long where kernels are interpreted, and show no more there."""

TOGETHER: Final = (
    *(("spark/",), ("test_site.py",), ("test_tidy.py",), ("test_live.py",), ("test_operate.py",)),
    ("interop/test_common_calls.py", "interop/test_move.py"),
)
"""What one process runs, a tuple each, for its tests share what takes seconds or a gigabyte."""

APART: Final = (
    "spark/test_cluster.py",
    "spark/test_connect.py",
    "spark/test_following.py::test_the_command_is_killed_and_started_again",
    "spark/test_java.py",
)
"""Those among them whose programs begin Spark sessions of their own; any process runs them."""

ON_DISK: Final = (
    # What a file system decides: blocks, holes, room, what is mapped.
    *("test_full_disk.py", "test_live.py", "test_max_bytes.py", "test_reuse.py"),
    *("test_small_stores.py", "offline/test_verify.py", "wheel/test_timerwheel.py"),
    *("timelog/test_consumequeue.py", "timelog/test_disk.py", "timelog/test_segments.py"),
    *("timelog/test_steady.py", "services/test_retention.py"),
    "services/test_prefetch.py",
    # What waits for an fsync, and processes that are killed.
    *("services/test_flush.py", "services/test_group_commit.py", "test_storm.py", "test_kill.py"),
    *("backups/test_follow_kill.py", "consuming/test_ackput_kill.py", "aio/test_kill.py"),
    *("serving/test_share_kill.py", "examples/test_demo.py"),
    # Servers, whose sockets have short names alone.
    "bench/test_peers.py::test_each_peer_that_is_there",
)
"""What is played on a disk; all else is in memory if there is room, but for `./run prove`."""


def is_proved(name: str) -> bool:
    """Tell whether a test, named by its place below `tests/`, is one for `./run prove`."""
    return name.startswith(PROVED) and not name.startswith(KEPT)


def is_long(name: str) -> bool:
    """Tell whether `./run test` leaves a test out, unless it is promised."""
    return name.startswith(LONG)


def is_whole(name: str) -> bool:
    """Tell whether a test is left out where kernels are interpreted, or check their bounds."""
    return name.startswith(WHOLE)


def is_on_disk(name: str) -> bool:
    """Tell whether a test keeps its stores on a disk."""
    return name.startswith(ON_DISK)


def is_promised(name: str) -> bool:
    """Tell whether `./run test` plays it though it is slow."""
    return name.startswith(PROMISED)


def how_many(name: str, few: int, many: int) -> int:
    """Return what a variable of the environment says, else few, or many where all is proved."""
    return int(os.environ.get(name) or (many if PROVING else few))


def some(values: Iterable[Any], every: int) -> list[Any]:
    """Return parameters of which one in `every` is tried always, and the others are proved."""
    proved = pytest.mark.prove
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=proved)
        if number % every
        else value
        for number, value in enumerate(values)
    ]
