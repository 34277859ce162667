"""The errors of NVIDIA's driver (Xids) that indicate a faulty GPU rather than a faulty program."""

RESET = "drain the host and run `nvidia-smi --gpu-reset`; if the error returns, replace the GPU"
LINK = f"check the NVLink bridges and switches; {RESET}"
# Meaning and remedy, by number, of the errors for which NVIDIA's Xid catalog asks at least for a reset.
XIDS = {
    48: ("uncorrectable memory error", RESET),
    62: ("its internal microcontroller halted", RESET),
    63: ("faulty memory will be replaced at the next reset", RESET),
    64: ("could not replace faulty memory", RESET),
    74: ("NVLink error", LINK),
    79: (
        "it fell off the bus",
        "reboot the host, and check that the card is seated properly and has enough power",
    ),
    92: ("many corrected memory errors", RESET),
    94: ("memory error that ended the program", RESET),
    95: ("uncontained memory error", RESET),
    119: ("its GSP firmware does not respond", RESET),
    120: ("error in its GSP firmware", RESET),
    140: ("memory error that was not repaired", RESET),
    **dict.fromkeys(range(144, 151), ("NVLink error", LINK)),
    154: ("the driver asks for a reset or a reboot", RESET),
}
