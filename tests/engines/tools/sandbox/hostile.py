"""Programs that try to get out, to stay, or to use up the machine.

In the code, PORT, PATH, ABSTRACT, SECRET_FILE and PARENT stand for what the test process offers:
a TCP port, a Unix socket, an abstract one, a file with a secret, and its process id. Each program
that gets through prints or returns BREACH or the secret; none may.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

LOOP_S = 0.3


@dataclass(frozen=True)
class Hostile:
    name: str
    code: str
    statuses: tuple[str, ...]
    says: str = ""
    """What stands in value, stdout or error."""
    wall_s: float = 8.0


def stopped(name: str, code: str) -> Hostile:
    return Hostile(name, dedent(code), ("timeout",), "stopped after", LOOP_S)


def refused(name: str, code: str, says: str = "PermissionError") -> Hostile:
    return Hostile(name, dedent(code), ("error",), says)


def contained(name: str, code: str, *statuses: str, says: str = "", wall_s: float = 8.0) -> Hostile:
    """Any of the statuses will do, "ok" without others: what it did had no effect."""
    return Hostile(name, dedent(code), statuses or ("ok",), says, wall_s)


LOOPS = [
    stopped("a loop", "while True: pass"),
    stopped("a sleep", "import time; time.sleep(100)"),
    stopped("a loop that catches all", "while True:\n try:\n  while True: pass\n except: pass"),
    stopped("a big integer", "x = 9**9**9"),
    stopped("big integers multiplied", "x = 7**2_000_000\nwhile True: x * x"),
    stopped("a regex bomb", "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')"),
    stopped("a loop in C", "sum(iter(int, 1))"),
    stopped("a loop in a repr", "class A:\n def __repr__(self):\n  while True: pass\nA()"),
    stopped("a loop while it is destroyed", "class A:\n def __del__(self):\n  while 1: pass\nA()"),
    stopped(
        "a lock never released",
        "import threading; threading.Lock().acquire(); "
        "l = threading.Lock(); l.acquire(); l.acquire()",
    ),
    stopped("a pipe never written", "import os; r, w = os.pipe(); os.read(r, 1)"),
    stopped("a wait for a signal", "import signal; signal.pause()"),
    stopped(
        "ignored signals",
        """
        import signal
        for n in range(1, 65):
            try: signal.signal(n, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: pass
    """,
    ),
    stopped(
        "a symbolic sum",
        "import sympy; n = sympy.Symbol('n'); sympy.expand((n + 1)**100_000 * (n - 2)**100_000)",
    ),
    stopped(
        "a full pipe of its own", "import os; r, w = os.pipe()\nwhile 1: os.write(w, bytes(99))"
    ),
]

MEMORY = [
    contained("ten gigabytes", "x = bytearray(10**10)", "memory", says="MemoryError"),
    contained("a growing list", "x = []\nwhile True: x.append(bytes(10**6))", "memory"),
    contained("a string doubled", "x = 'x'\nwhile True: x += x", "memory"),
    contained("an array", "import numpy; numpy.ones((10**5, 10**5))", "memory"),
    contained(
        "memory and no mercy",
        """
        x = []
        while True:
            try: x.append(bytes(10**6))
            except MemoryError: pass
    """,
        "timeout",
        wall_s=0.6,
    ),
    contained("a private mapping", "import mmap; m = mmap.mmap(-1, 10**10)", "error", "memory"),
    contained(
        "shared mappings",
        """
        import mmap
        x = []
        while True: x.append(mmap.mmap(-1, 10**7)); x[-1].write(bytes(10**7))
    """,
        "error",
        "memory",
        "killed",
    ),
    contained("a range made a list", "list(range(10**12))", "memory"),
    refused("memory files", "import os; os.memfd_create('x')"),
    contained(
        "shared memory",
        "from multiprocessing import shared_memory as s\ns.SharedMemory(create=True, size=10**9)",
        "error",
        "killed",
    ),
    contained("a wide format", "'%1000000000d' % 1", "memory"),
]

RECURSION = [
    contained("recursion", "def f(): return f()\nf()", "error", says="RecursionError"),
    contained(
        "recursion without a limit",
        """
        import sys
        sys.setrecursionlimit(10**9)
        def f(): return f()
        f()
    """,
        "killed",
        "memory",
        "error",
        "timeout",
        wall_s=2.0,
    ),
    contained(
        "recursion in C",
        """
        import sys
        sys.setrecursionlimit(10**9)
        x = []
        for _ in range(10**6): x = [x]
        repr(x)
    """,
        "killed",
        "memory",
        wall_s=40.0,  # each level compares itself with all above: seconds until the stack is full
    ),
    contained("nested brackets", "eval('(' * 10**5)", "error"),
    contained("code nested too deeply", "(" * 150 + "1" + ")" * 150, "ok", "error"),
    contained("deep operators", "-" * 20_000 + "1", "error", "killed", "memory"),
    contained(
        "no recursion left", "import sys; sys.setrecursionlimit(30)", "ok", "killed", "error"
    ),
]

OUTPUT = [
    contained(
        "a gigabyte of output", "while True: print('x' * 10**6)", "output", says="wrote more"
    ),
    contained("errors without end", "import sys\nwhile 1: sys.stderr.write('x' * 999)", "output"),
    contained("output past Python", "import os\nwhile True: os.write(1, b'x' * 65536)", "output"),
    contained("a long value", "'x' * 10**7", says="xxx"),
    contained("a long error", "raise ValueError('x' * 10**7)", "error", says="ValueError: xxx"),
    contained("many variables", "for i in range(10**4): globals()[f'v{i}'] = 'x' * 1000"),
    contained("no UTF-8", "import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\x00ok')", says="ok"),
    contained("half a character", "print('\\ud800'); '\\udfff'"),
    contained("terminal escapes", "print('\\x1b]0;owned\\x07\\x9b2J')"),
    contained("a value that lies", "class A:\n def __repr__(self): return 'x' * 10**8\nA()"),
    contained(
        "a repr that raises",
        "class A:\n def __repr__(self): raise SystemExit(3)\nA()",
        "ok",
        "error",
    ),
    contained(
        "an error without text",
        "class E(Exception):\n def __str__(self): return 1/0\nraise E",
        "error",
    ),
    contained("a huge integer shown", "10**5000", says="int"),
]

PROCESSES = [
    refused("a fork", "import os; os.fork() or print('BREACH')"),
    refused("a fork bomb", "import os\nwhile True: os.fork()"),
    refused("a shell", "import os\nif os.system('echo BREACH'): raise PermissionError"),
    refused("a subprocess", "import subprocess; subprocess.run(['echo', 'BREACH'])"),
    refused("another program", "import os; os.execv('/bin/sh', ['sh', '-c', 'echo BREACH'])"),
    refused("a spawn", "import os; os.posix_spawn('/bin/sh', ['sh'], {})"),
    refused(
        "a daemon",
        """
        import os
        if os.fork() == 0:
            os.setsid()
            while True: pass
    """,
    ),
    contained(
        "a worker pool", "from multiprocessing import Pool; Pool(2).map(print, ['BREACH'])", "error"
    ),
    contained(
        "threads without end",
        """
        import threading, time
        while True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
    """,
        "error",
        "memory",
        "killed",
        "timeout",
        wall_s=3.0,
    ),
    contained(
        "a thread that goes on",
        """
        import threading
        def f():
            while True: pass
        threading.Thread(target=f).start()
    """,
    ),
    refused("a signal to the studio", "import os; os.kill(PARENT, 9)"),
    refused("a signal to all", "import os; os.kill(-1, 9)"),
    refused("a signal to the group", "import os; os.killpg(0, 9)"),
    contained(
        "its own end", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ok", "killed"
    ),
    contained("an abort", "import os; os.abort()", "killed", says="signal"),
    contained("an exit", "raise SystemExit(3)", "error", says="SystemExit: 3"),
    contained("a hard exit", "import os; os._exit(0)", "killed", says="exit code 0"),
    contained("an interrupt", "raise KeyboardInterrupt", "error", says="KeyboardInterrupt"),
    contained(
        "an alarm", "import signal; signal.alarm(1); signal.setitimer(0, 0.001)", "ok", "killed"
    ),
    contained(
        "a stop",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "ok",
        "timeout",
        wall_s=LOOP_S,
    ),
    refused("another's limits", "import resource; resource.prlimit(PARENT, 7, (9, 9))"),
    contained(
        "higher limits",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "error",
        says="limit",
    ),
    contained("another's priority", "import os; os.setpriority(os.PRIO_USER, 0, 19)", "error"),
    refused(
        "a new namespace",
        "import ctypes, os; l = ctypes.CDLL(None, use_errno=True)\n"
        "if l.unshare(0x10000000): raise PermissionError(ctypes.get_errno())",
    ),
]

MEMORY_OF_OTHERS = [
    contained("environment of the studio", "open('/proc/PARENT/environ').read()", "error"),
    contained("memory of the studio", "open('/proc/PARENT/mem', 'rb').read(1)", "error"),
    contained("files of the studio", "import os; os.listdir('/proc/PARENT/fd')", "error"),
    contained("the root of the studio", "import os; os.listdir('/proc/PARENT/root')", "error"),
    contained(
        "every process",
        """
        import glob
        for name in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):
            try: print(open(name, 'rb').read())
            except OSError: pass
    """,
    ),
    contained("its own environment", "import os; print(dict(os.environ))"),
    contained(
        "its environment in C",
        """
        import ctypes
        e = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')
        i = 0
        while e[i]: print(e[i]); i += 1
    """,
        "ok",
        "killed",
    ),
    refused(
        "ptrace",
        """
        import ctypes
        if ctypes.CDLL(None, use_errno=True).ptrace(16, PARENT, 0, 0):
            raise PermissionError(ctypes.get_errno())
        print('BREACH')
    """,
    ),
    refused(
        "another's memory",
        """
        import ctypes
        if ctypes.CDLL(None, use_errno=True).process_vm_readv(PARENT, 0, 0, 0, 0, 0):
            raise PermissionError(ctypes.get_errno())
        print('BREACH')
    """,
    ),
    refused("another's descriptors", "import os; os.pidfd_open(PARENT)"),
    contained("a wild pointer", "import ctypes; ctypes.string_at(0)", "killed", says="signal 11"),
    contained("a wild write", "import ctypes; ctypes.memset(id(None), 0, 64)", "killed"),
    refused(
        "io_uring",
        """
        import ctypes
        p = ctypes.create_string_buffer(256)
        if ctypes.CDLL(None, use_errno=True).syscall(425, 8, p) < 0:
            raise PermissionError(ctypes.get_errno())
        print('BREACH')
    """,
    ),
    refused(
        "the kernel's programs",
        """
        import ctypes
        if ctypes.CDLL(None, use_errno=True).syscall(BPF, 0, None, 0) < 0:
            raise PermissionError(ctypes.get_errno())
    """,
    ),
]

FILES = [
    contained("the secret", "open('SECRET_FILE').read()", "error"),
    contained(
        "the secret by a link",
        "import os; os.symlink('SECRET_FILE', 'link'); open('link').read()",
        "error",
    ),
    contained(
        "the secret by a hard link",
        "import os; os.link('SECRET_FILE', 'link'); open('link').read()",
        "error",
    ),
    contained("the secret by dots", "open('../../../../..SECRET_FILE').read()", "error"),
    contained(
        "homes",
        """
        import os
        for top in ('/root', '/home', '/work', '/etc/shadow', '/var'):
            for folder, _, files in os.walk(top):
                if 'site-packages' in folder or 'lib/python' in folder: continue
                for name in files:
                    try: print('SECRET' + 'SAUCE' in open(f'{folder}/{name}').read())
                    except (OSError, UnicodeDecodeError): pass
    """,
        "ok",
        "timeout",
        "output",
        wall_s=2.0,
    ),
    contained("writing outside", "open('/etc/passwd', 'a')", "error"),
    contained("writing at the top", "open('/breach', 'w')", "error"),
    contained("writing to the interpreter", "import os; open(os.__file__, 'a')", "error"),
    contained("writing where the secret is", "open('SECRET_FILE', 'w')", "error"),
    contained("removing the secret", "import os; os.remove('SECRET_FILE')", "error"),
    contained("a large file", "f = open('f', 'wb')\nwhile True: f.write(bytes(10**6))", "error"),
    contained(
        "many files",
        "for i in range(10**6): open(f'f{i}', 'wb').write(bytes(10**4))",
        "error",
        "killed",
    ),
    contained(
        "many folders", "import os\nfor i in range(10**7): os.mkdir(f'd{i}')", "error", "killed"
    ),
    contained("many descriptors", "x = []\nwhile True: x.append(open('/dev/null'))", "error"),
    contained("a device", "import os; os.mknod('disk', 0o60666, os.makedev(8, 0))", "error"),
    contained(
        "a mount",
        "import ctypes; l = ctypes.CDLL(None)\n"
        "if l.mount(b'none', b'/home', b'tmpfs', 0, None): raise PermissionError",
        "error",
    ),
    contained("another root", "import os; os.chroot('.')", "error"),
    contained(
        "another user",
        "import os; os.setuid(0); print('BREACH' * (os.getuid() != 0))",
        "error",
        "ok",
    ),
    contained("a file of the next call", "open('left', 'w').write('x')"),
    contained("the kernel's settings", "open('/proc/sys/kernel/core_pattern', 'w')", "error"),
    contained("cgroups", "import os; os.mkdir('/sys/fs/cgroup/breach')", "error"),
]

_CONNECT = "import socket; s = socket.socket(socket.{}, socket.{}); s.connect({}); print('BREACH')"
NETWORK = [
    refused("TCP to the studio", _CONNECT.format("AF_INET", "SOCK_STREAM", "('127.0.0.1', PORT)")),
    refused("TCP over IPv6", _CONNECT.format("AF_INET6", "SOCK_STREAM", "('::1', PORT)")),
    refused("a datagram", _CONNECT.format("AF_INET", "SOCK_DGRAM", "('1.1.1.1', 53)")),
    refused("a raw socket", _CONNECT.format("AF_INET", "SOCK_RAW", "('127.0.0.1', 0)")),
    refused("a Unix socket", _CONNECT.format("AF_UNIX", "SOCK_STREAM", "'PATH'")),
    refused("an abstract socket", _CONNECT.format("AF_UNIX", "SOCK_STREAM", "'\\0ABSTRACT'")),
    refused("netlink", "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    refused("packets", "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    refused("the host of a virtual machine", "import socket; socket.socket(socket.AF_VSOCK)"),
    refused(
        "every family",
        """
        import socket
        for family in range(1, 46):
            try: socket.socket(family, socket.SOCK_STREAM)
            except PermissionError: continue
            except OSError: pass
            print('BREACH', family)
        raise PermissionError
    """,
    ),
    contained("DNS", "import socket; socket.getaddrinfo('example.com', 80)", "error", says="gai"),
    contained(
        "a web page",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:PORT')",
        "error",
        says="URLError",
    ),
    refused("a server", "import socket; socket.create_server(('', 0))"),
    refused(
        "datagrams of a pair",
        """
        import socket
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        a.sendto(b'x', '\\0ABSTRACT')
    """,
    ),
]

INTERPRETER = [
    contained("a question", "input()", "error", says="EOFError"),
    contained("closed descriptors", "import os; os.closerange(0, 1000)", "killed"),
    contained("closed output", "import sys, os; sys.stdout.close(); os.close(1); os.close(2)"),
    contained(
        "garbage on the channel",
        """
        import os
        for n in range(3, 64):
            try: os.write(n, b'{garbage\\n')
            except OSError: pass
    """,
        "killed",
        "ok",
    ),
    contained(
        "a forged reply",
        """
        import os
        for n in range(3, 64):
            try: os.write(n, b'{"status": "ok", "value": 7, "variables": [1]}\\n' * 9)
            except OSError: pass
    """,
        "ok",
        "killed",
    ),
    contained(
        "a reply without end",
        """
        import os
        for n in range(3, 64):
            try:
                for _ in range(999): os.write(n, b'x' * 65536)
            except OSError: pass
    """,
        "killed",
        "timeout",
        "output",
        wall_s=2.0,
    ),
    contained(
        "no builtins",
        "import builtins\nfor n in dir(builtins): delattr(builtins, n)",
        "killed",
        "error",
    ),
    contained("no modules", "import sys; sys.modules.clear()", "ok", "killed", "error"),
    contained(
        "a trace",
        "import sys; sys.settrace(lambda *a: 1/0); sys.setprofile(lambda *a: 1/0)",
        "ok",
        "killed",
        "error",
    ),
    contained(
        "frames of the caller",
        """
        import sys
        f = sys._getframe()
        while f: f.f_locals.clear() if hasattr(f.f_locals, 'clear') else 0; f = f.f_back
    """,
        "ok",
        "error",
        "killed",
    ),
    contained("an import hook", "import sys; sys.meta_path.insert(0, None); import xyz", "error"),
    contained("a null character", "x = '\0'", "error", says="SyntaxError"),
    contained("no Python", "this is no Python", "error", says="SyntaxError"),
    contained("an exit handler", "import atexit; atexit.register(print, 'BREACH')"),
]

HOSTILE: list[Hostile] = [
    *(LOOPS + MEMORY + RECURSION + OUTPUT + PROCESSES),
    *(MEMORY_OF_OTHERS + FILES + NETWORK + INTERPRETER),
]
