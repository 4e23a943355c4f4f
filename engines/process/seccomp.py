"""Filters of system calls: what is refused, and the filter program that refuses it.

Refused calls fail with EPERM, so that Python raises PermissionError; calls newer than the table
fail with ENOSYS, as on an older kernel. What is left open is held by the other layers: files by
mounts and landlock, memory and time by limits.
"""

import ctypes
import functools
import os
import re
import struct
from collections.abc import Iterable

from engines.process import kernel

# Name, number on x86_64, number on aarch64; "-": there is no such call.
_ALWAYS = """
    # other processes
    ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271,
    process_madvise 440 440, kcmp 312 272, pidfd_getfd 438 438, move_pages 279 239,
    migrate_pages 256 238,
    # large parts of the kernel that no program here needs
    io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, bpf 321 280,
    perf_event_open 298 241, userfaultfd 323 282, memfd_secret 447 447, add_key 248 217,
    request_key 249 218, keyctl 250 219, fanotify_init 300 262, name_to_handle_at 303 264,
    open_by_handle_at 304 265, personality 135 92, lookup_dcookie 212 18, modify_ldt 154 -,
    # mounts and namespaces
    mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428,
    move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433,
    mount_setattr 442 442, unshare 272 97, setns 308 268,
    # the machine
    init_module 175 105, finit_module 313 273, delete_module 176 106, kexec_load 246 104,
    kexec_file_load 320 294, reboot 169 142, swapon 167 224, swapoff 168 225, acct 163 89,
    quotactl 179 60, quotactl_fd 443 443, syslog 103 116, settimeofday 164 170,
    clock_settime 227 112, clock_adjtime 305 266, adjtimex 159 171, sethostname 170 161,
    setdomainname 171 162, vhangup 153 58, iopl 172 -, ioperm 173 -,
"""
_FOR_CODE = """
    # other programs and processes, and the network
    socket 41 198, connect 42 203, bind 49 200, listen 50 201, fork 57 -, vfork 58 -,
    execve 59 221, execveat 322 281, pidfd_open 434 434, pidfd_send_signal 424 424,
    process_mrelease 448 448,
    # memory that no limit counts
    memfd_create 319 279, shmget 29 194, semget 64 190, msgget 68 186, mq_open 240 180,
    # the shares of other processes
    setpriority 141 140, ioprio_set 251 30, sched_setaffinity 203 122,
    sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274,
"""
# Calls whose first argument is a process: a program's own, or none.
_ON_ITSELF = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "prlimit64": (302, 261),
}
_TKILL, _CLONE, _CLONE3 = (200, 130), (56, 220), (435, 435)
_SOCKET, _SOCKETPAIR, _IOCTL = (41, 198), (53, 199), (16, 29)

LAST_KNOWN = 450
_CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020000  # any CLONE_NEW… of them
_FAMILIES = (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink: what getaddrinfo and servers use
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing for the person at the terminal

_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06

Instruction = tuple[int, int, int, int]


def _refuse(number: int, error: int = _EPERM) -> list[Instruction]:
    return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]


def _refuse_by_argument(
    number: int, index: int, tests: Iterable[tuple[int, int]], *, when: bool
) -> list[Instruction]:
    """Refuse a call when any of the tests of an argument's low half holds, or when none does."""
    values = list(tests)
    loaded: list[Instruction] = [(_LOAD, 0, 0, 16 + 8 * index)]
    for left, (test, value) in zip(range(len(values) - 1, -1, -1), values, strict=True):
        # Jumps count from the next instruction; behind the tests stand refusal and reload.
        if when:
            loaded.append((test, left, 0 if left else 1, value))
        else:
            loaded.append((test, left + 1, 0, value))
    loaded.append((_RETURN, 0, 0, _ERRNO | _EPERM))
    loaded.append((_LOAD, 0, 0, 0))  # the number again, for the next rule
    return [(_EQUAL, 0, len(loaded), number), *loaded]


@functools.cache  # it takes a millisecond, which a template spares each process that it forks
def build_filter(
    pid: int, *, code: bool, streams_only: bool = False, x86: bool = kernel.IS_X86
) -> bytes:
    """The filter: for code that lives in this process `pid`, or for a program with children.

    With `streams_only` a program has no datagrams: landlock keeps TCP ports alone.
    """
    column = 0 if x86 else 1
    program: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, 0xC000003E if x86 else 0xC00000B7),
        (_RETURN, 0, 0, _KILL),  # a call of another architecture
        (_LOAD, 0, 0, 0),
        (_ABOVE, 0, 1, LAST_KNOWN),  # the numbers of the x32 interface among them
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        # Its flags lie in memory, which a filter cannot read; the C library then takes clone.
        *_refuse(_CLONE3[column], _ENOSYS),
    ]
    for name_and_numbers in re.findall(r"\w+ [\d-]+ [\d-]+", _ALWAYS + _FOR_CODE * code):
        number = name_and_numbers.split()[1 + column]
        if number != "-":
            program += _refuse(int(number))
    program += _refuse_by_argument(
        _IOCTL[column], 1, [(_EQUAL, value) for value in _TERMINAL_INPUT], when=True
    )
    # A pair of datagram sockets can send to any Unix socket.
    streams = [(_EQUAL, 1 | flags) for flags in (0, 0x800, 0x80000, 0x80800)]
    if code or streams_only:
        for numbers in (_SOCKET, _SOCKETPAIR):
            program += _refuse_by_argument(numbers[column], 1, streams, when=False)
    if code:
        program += _refuse_by_argument(_CLONE[column], 0, [(_ANY_BIT, _CLONE_THREAD)], when=False)
        own = [(_EQUAL, pid)]
        for name, numbers in _ON_ITSELF.items():
            tests = [*own, (_EQUAL, 0)] if name == "prlimit64" else own
            program += _refuse_by_argument(numbers[column], 0, tests, when=False)
        program += _refuse(_TKILL[column])
    else:
        program += _refuse_by_argument(_CLONE[column], 0, [(_ANY_BIT, _CLONE_NEW)], when=True)
        families = [(_EQUAL, family) for family in _FAMILIES]
        program += _refuse_by_argument(_SOCKET[column], 0, families, when=False)
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def install(*, code: bool, streams_only: bool = False) -> None:
    """For this thread and all that it starts, for good."""
    kernel.prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    content = build_filter(os.getpid() if code else 0, code=code, streams_only=streams_only)
    instructions = ctypes.create_string_buffer(content, len(content))
    described = struct.pack("<HxxxxxxQ", len(content) // 8, ctypes.addressof(instructions))
    program = ctypes.create_string_buffer(described, len(described))
    kernel.prctl(22, 2, ctypes.addressof(program))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
