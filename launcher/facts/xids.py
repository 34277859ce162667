"""The errors of NVIDIA's driver (Xids) that mean a fault of the GPU, not of a program."""

RESET = "drain the host and run `nvidia-smi --gpu-reset`; if the error returns, replace the GPU"
LINK = f"check the NVLink bridges and switches; {RESET}"
# Number: (meaning, remedy). The errors in NVIDIA's Xid catalog that call for at least a reset.
XIDS = {
    48: ("uncorrectable memory error", RESET),
    62: ("its internal microcontroller halted", RESET),
    63: ("faulty memory is replaced at the next reset", RESET),
    64: ("could not replace faulty memory", RESET),
    74: ("NVLink error", LINK),
    79: ("it fell off the bus", "reboot the host, and check the seat and the power of the card"),
    92: ("many corrected memory errors", RESET),
    94: ("memory error that ended the program", RESET),
    95: ("memory error that was not contained", RESET),
    119: ("its GSP firmware does not answer", RESET),
    120: ("error of its GSP firmware", RESET),
    140: ("memory error that was not repaired", RESET),
    **dict.fromkeys(range(144, 151), ("NVLink error", LINK)),
    154: ("the driver asks for a reset or a reboot", RESET),
}
