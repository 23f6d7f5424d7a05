"""Counters of network ports: one name for each, whatever a driver or a tool calls it. The capture
samples those of /sys/class/infiniband, readers find them in what tools print."""

from __future__ import annotations

WAIT, CNP, ECN, PAUSE_US = "xmit_wait", "cnp_handled", "ecn_marked", "pause_us"
RX, TX = "rx_bytes", "tx_bytes"
ALIASES: dict[str, tuple[str, ...]] = {
    "symbol_errors": ("symbol_error", "symbolerrorcounter", "rx_symbol_err_phy"),
    "link_recoveries": ("link_error_recovery", "linkerrorrecoverycounter"),
    "link_downed": ("linkdownedcounter", "link_down_events_phy"),
    "rcv_errors": ("port_rcv_errors", "portrcverrors", "rx_crc_errors_phy", "rx_crc_errors"),
    "integrity_errors": ("local_link_integrity_errors", "locallinkintegrityerrors"),
    "buffer_overruns": ("excessive_buffer_overrun_errors", "excessivebufferoverrunerrors"),
    "xmit_discards": ("port_xmit_discards", "portxmitdiscards", "tx_discards_phy"),
    "rcv_discards": ("out_of_buffer", "rx_out_of_buffer", "rx_discards_phy", "rx_missed_errors"),
    WAIT: ("port_xmit_wait", "portxmitwait"),
    "cnp_sent": ("np_cnp_sent",),
    CNP: ("rp_cnp_handled",),
    ECN: ("np_ecn_marked_roce_packets",),
    "sequence_errors": ("packet_seq_err",),
    "out_of_sequence": (),
    "ack_timeouts": ("local_ack_timeout_err",),
    "rnr_retries": ("rnr_nak_retry_err",),
    "retransmits": ("roce_adp_retrans", "tcpretranssegs", "retrans_pkts"),
    "pause_frames": ("rx_pause_ctrl_phy", "rx_global_pause", "rx_flow_control_xoff"),
    PAUSE_US: ("rx_global_pause_duration",),
    RX: ("rx_bytes_phy",),
    TX: ("tx_bytes_phy",),
}
"""Other names of each counter, in small letters, by our name."""
NAMES: dict[str, str] = {word: name for name, words in ALIASES.items() for word in (name, *words)}
WORDS_OF_FOUR: dict[str, str] = {
    "port_rcv_data": RX,
    "portrcvdata": RX,
    "port_xmit_data": TX,
    "portxmitdata": TX,
}
"""Counters of InfiniBand that count in words of four bytes."""
FILES = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
    *("port_xmit_discards", "port_xmit_wait", "port_rcv_data", "port_xmit_data"),
    *("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "packet_seq_err"),
    *("out_of_sequence", "local_ack_timeout_err", "rnr_nak_retry_err", "roce_adp_retrans"),
    "out_of_buffer",
)
"""Files of a port in /sys/class/infiniband, in `counters` or `hw_counters`."""


def counter_of(word: str) -> tuple[str, int] | None:
    """Our name of a counter, and how many of ours one of it is; None for one that we do not
    judge."""
    word = word.lower()
    if word in WORDS_OF_FOUR:
        return WORDS_OF_FOUR[word], 4
    name = NAMES.get(word)
    return None if name is None else (name, 1)
