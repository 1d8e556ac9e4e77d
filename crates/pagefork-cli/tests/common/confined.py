"""Runs a command as it would run elsewhere: `confined.py without-userfaultfd COMMAND...` as in a
container that refuses that system call, `confined.py as-nobody COMMAND...` as a user without rights."""

import ctypes
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2
USERFAULTFD, REFUSED, ALLOWED = 323, 0x00050001, 0x7FFF0000


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def refuse_userfaultfd():
    # Load the number of the call; if it is this one, say EPERM, else go on.
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, USERFAULTFD), (0x06, 0, 0, REFUSED), (0x06, 0, 0, ALLOWED)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in [(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER, ctypes.byref(program))]:
        if libc.prctl(*arguments) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")


def become_nobody():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


{"without-userfaultfd": refuse_userfaultfd, "as-nobody": become_nobody}[sys.argv[1]]()
os.execv(sys.argv[2], sys.argv[2:])
