"""What the scenes share: commands on hosts, the world's side of things, and waiting that ends."""
import json
import os
import signal
import subprocess
import time
import urllib.request

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "../.."))
HOSTS = os.path.join(HERE, "hosts")
NODES = ["es-client-1", "es-client-2", "es-client-3"]
MACHINE = "10.77.0.1"
CONTROL = 7977
STATE = "/var/lib/backstop"
CONFIG = "/etc/backstop/backstop.toml"
# `run` is refused because of another node: its slot, or that it is out, or that its cycle has failed.
REFUSED = (10, 11, 15, 100)
STARTED = time.monotonic()
RUNNING = []


class Wrong(Exception):
    """What was to be seen was not."""


def say(text):
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


def command(args, check=True, **options):
    done = subprocess.run(args, text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=600, **options)
    if check and done.returncode != 0:
        raise Wrong(f"{' '.join(args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def hosts(*args, check=True):
    return command([HOSTS, *args], check=check)


def on(node, *args, check=True):
    """A command in a host, as root."""
    return hosts("run", node, "--", *args, check=check)


def put(node, path, text):
    done = subprocess.run(
        [HOSTS, "run", node, "--", "sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path],
        input=text, text=True, capture_output=True, timeout=60,
    )
    if done.returncode != 0:
        raise Wrong(f"cannot write {path} on {node}: {done.stderr}")


def until(what, seconds, condition):
    """Waits for a condition. A command in a host that is down is no answer, and no failure."""
    end = time.monotonic() + seconds
    last = None
    while True:
        try:
            last = condition()
            if last:
                return last
        except (Wrong, OSError, ValueError, KeyError, TypeError) as e:
            last = e
        if time.monotonic() > end:
            raise Wrong(f"not within {seconds} s: {what} (last: {last})")
        time.sleep(0.2)  # the pace of looking, not what is waited for


def expect(what, condition, seen=""):
    if not condition:
        raise Wrong(f"{what}: {seen}")


# --- the world ---


def state():
    with urllib.request.urlopen(f"http://127.0.0.1:{CONTROL}/state", timeout=10) as answer:
        return json.load(answer)


def tell(path):
    request = urllib.request.Request(f"http://127.0.0.1:{CONTROL}/{path}", method="POST")
    urllib.request.urlopen(request, timeout=10).close()


def pages(word):
    """Pages that woke somebody, with this word in their key."""
    return [page for page in state()["pages"] if page["event"] == "trigger" and word in page["key"]]


def no_request_failed():
    seen = state()
    expect("no request failed", seen["failed"] == 0 and seen["not_sent"] == 0, seen["failures"])
    expect("there was traffic", seen["answered"] > 5, seen["answered"])
    return seen["answered"]


# --- a node ---


def status(node):
    return json.loads(on(node, "backstop", "status", "--json").stdout)


def stage(node):
    cycle = status(node)["cycle"]
    return cycle and cycle["stage"]


def boot(node):
    return on(node, "cat", "/proc/sys/kernel/random/boot_id").stdout.strip()


def other_boot(node, before):
    until(f"{node} boots again", 420, lambda: boot(node) not in ("", before))


def agent_pid(node):
    return on(node, "systemctl", "show", "-P", "MainPID", "backstop").stdout.strip()


def another_agent(node, pid, seconds=120):
    return until("another agent runs", seconds, lambda: agent_pid(node) not in ("0", pid) and agent_pid(node))


def signalled(node, name):
    on(node, "systemctl", "kill", "--kill-whom=main", f"--signal={name}", "backstop")


def there(node, path):
    return on(node, "test", "-e", path, check=False).returncode == 0


def latches(node):
    """Ids of those that nobody has cleared."""
    return [latch["id"] for latch in json.loads(on(node, "backstop", "latch", "list", "--json").stdout)["latches"]]


def clear_latches():
    """What a person does in the end. Each was paged about."""
    node = NODES[0]
    for latch in until("the list of latches", 60, lambda: (latches(node),))[0]:
        until(f"somebody was paged about {latch}", 90, lambda: any(latch in page["text"] for page in state()["pages"]))
        clear = ("backstop", "latch", "clear", latch, "--reason", "a test", "--unresolved")
        until(f"latch {latch} is cleared", 60, lambda: on(node, *clear).returncode == 0)


def at_rest(latched=False):
    """All three in service, by the load balancer and by every agent; no slot, no cycle, and no latch where none may be left."""
    if sorted(state()["in_service"]) != NODES:
        return False
    for node in NODES:
        seen = status(node)
        if seen["in_service"] != 3 or seen["cycle"] is not None or seen["record"]["slots"]:
            return False
    return latched or not latches(NODES[0])


def settled(seconds=150, latched=False):
    until("the fleet is settled", seconds, lambda: at_rest(latched))


# --- a cycle ---


def start_run(node, *args):
    """`backstop run` on a node, as a process of this machine: its end is looked at later, or is that of the node."""
    process = subprocess.Popen(
        [HOSTS, "run", node, "--", "backstop", "run", *args],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    RUNNING.append(process)
    return process


def ended(process, seconds=180):
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Wrong(f"no end within {seconds} s: {process.args}") from None
    return process.returncode, said


def verdict(node, code=0, seconds=240):
    """What `backstop wait` says, as soon as an agent answers."""
    def asked():
        done = on(node, "timeout", "300", "backstop", "wait", "--json", check=False)
        return done if done.returncode not in (16, 106, 125) else None
    done = until(f"a verdict on {node}", seconds, asked)
    expect(f"the verdict on {node} is {code}", code is None or done.returncode == code, done.stdout + done.stderr)
    return json.loads(done.stdout)


def held(node, first="true", reboot="never"):
    """A cycle whose job works until `go`; returns once it does."""
    on(node, "rm", "-f", "/srv/go", "/srv/works")
    job = f"{first} && touch /srv/works; while [ ! -e /srv/go ]; do sleep 0.2; done"
    process = start_run(node, "--reboot", reboot, "--", "/bin/sh", "-c", job)
    until("the job works", 90, lambda: there(node, "/srv/works"))
    expect("the cycle is in its patch", stage(node) == "patch", status(node)["cycle"])
    return process


def go(node):
    on(node, "touch", "/srv/go")


def refused_elsewhere(node, codes=REFUSED):
    """While a node is out, the others are refused, with a documented code."""
    for other in NODES:
        if other != node:
            done = on(other, "backstop", "run", "--", "true", check=False)
            expect(f"{other} is refused", done.returncode in codes, (done.returncode, done.stdout + done.stderr))


def end_all():
    for process in RUNNING:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
