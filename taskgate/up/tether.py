"""`tether.py SIGNAL PARENT COMMAND…`: becomes COMMAND, which gets SIGNAL when PARENT dies. Run by path.

The kernel keeps the wish across exec. It is made here, not between fork and exec of the parent, which may have threads.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    signal_number, parent, *command = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal_number)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):  # it died before the wish was made
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
