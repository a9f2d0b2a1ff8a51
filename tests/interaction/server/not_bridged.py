"""Scenarios of a server that say nothing of a proxy before it, and why. All others hold through it, too."""

from __future__ import annotations

from typing import Final

__all__ = ["NOT_BRIDGED"]

_OWN_CALLER: Final = "the server's caller is the proxy, which cancels when it ends: the cause is 'peer'"
_ONE_ERA: Final = "two eras on one connection share the proxy's connection to the server, which is of one era"
_OWN_LIMITS: Final = "the limit is that of the process which the client talks to, and the proxy has its own"
_REPETITIONS: Final = "changes that wait are kept once: who cannot take them as fast as they come misses repetitions"
_REFUSED: Final = "an answer that is no object is refused by the proxy: the handler sees an error, no violation"

NOT_BRIDGED: Final = {
    "test_shd_01_sigterm_refuses_new_work_finishes_short_work_and_cancels_long_work": _OWN_CALLER,
    "test_s2c_05_end_of_the_client_between_the_rounds_ends_the_handler": _OWN_CALLER,
    "test_s2c_05_shutdown_while_a_handler_is_parked_cleans_up_at_once": _OWN_CALLER,
    "test_log_02_eras_on_one_connection_keep_their_own_levels": _ONE_ERA,
    "test_questions_of_both_eras_go_their_own_ways_on_one_connection": _ONE_ERA,
    "test_mod_03_two_eras_and_a_stream_on_one_connection_do_not_mix": _ONE_ERA,
    "test_rpc_05_batch_of_notifications_and_a_batch_too_long": _OWN_LIMITS,
    "test_a_cancelled_stream_is_silent_and_its_id_is_free_again": _REPETITIONS,
    "test_the_id_of_an_open_stream_is_refused_and_the_stream_goes_on": _REPETITIONS,
    "test_s2c_04_result_that_is_no_sampling_result_is_an_error_of_that_question": _REFUSED,
}
"""By their names."""
