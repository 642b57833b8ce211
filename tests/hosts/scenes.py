"""What administrators and patch automation do to a fleet, and what befalls it. Each scene begins and ends with a settled fleet."""
import json
import os
import subprocess
import time

from kit import (
    CONFIG, HOSTS, NODES, ROOT, STATE, agent_pid, another_agent, boot, clear_latches, command, ended, expect, go, held,
    hosts, latches, on, other_boot, pages, put, refused_elsewhere, settled, signalled, stage, start_run, state, status, until, verdict,
)

PLAY = os.path.join(ROOT, "examples/patch.yml")


# --- the whole fleet, by the example play ---


def play(**variables):
    """The example, against the hosts' own sshd. What it says of each host."""
    folder = os.path.join(os.environ["HOSTS_DIR"], "play")
    os.makedirs(folder, exist_ok=True)
    key = os.path.join(folder, "key")
    if not os.path.exists(key):
        command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key])
    with open(f"{key}.pub", encoding="utf-8") as file:
        public = file.read()
    lines = ["[es_clients]"]
    for line in hosts("list").stdout.splitlines():
        name, address, *_ = line.split()
        on(name, "sh", "-c", 'mkdir -p ~/.ssh && echo "$1" > ~/.ssh/authorized_keys && chmod -R go= ~/.ssh', "sh", public)
        lines.append(f"{name} ansible_host={address} ansible_user=root ansible_python_interpreter=/usr/bin/python3")
    inventory = os.path.join(folder, "inventory")
    with open(inventory, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    environment = {
        **os.environ, "ANSIBLE_CALLBACK_PLUGINS": os.path.join(ROOT, "tests/hosts/callbacks"), "ANSIBLE_STDOUT_CALLBACK": "report", "ANSIBLE_PRIVATE_KEY_FILE": key, "ANSIBLE_HOST_KEY_CHECKING": "False",
        "ANSIBLE_HOME": folder, "ANSIBLE_SSH_ARGS": "-o UserKnownHostsFile=/dev/null -o ControlMaster=no", "ANSIBLE_FORKS": "3",
        "ANSIBLE_DEPRECATION_WARNINGS": "False", "PYTHONDONTWRITEBYTECODE": "1", "ANSIBLE_PIPELINING": "True", "ANSIBLE_SSH_TRANSFER_METHOD": "piped",
    }
    program = os.path.join(os.environ.get("BACKSTOP_ANSIBLE", ""), "ansible-playbook")
    done = command([program, "-i", inventory, PLAY, "-e", json.dumps(variables)], check=False, env=environment)
    said = json.loads(done.stdout[done.stdout.find('{"stats"'):] or "{}")
    trouble = [(task, node, result) for task, nodes in said.get("tasks", {}).items() for node, result in nodes.items()
               if result.get("failed") or result.get("unreachable")]
    expect("the play is green", done.returncode == 0, (trouble, said.get("stats"), done.stderr[-2000:]))
    return said["stats"], said["tasks"]


def the_example_play_patches_and_restarts_all_three_at_once():
    for node in NODES:
        on(node, "rm", "-f", "/var/lib/patched")
    before = {node: boot(node) for node in NODES}
    wanted = {
        "patch_needed": "test ! -e /var/lib/patched",
        "patch_command": ["sh", "-c", "touch /var/lib/patched /run/reboot-required"],
    }
    stats, tasks = play(**wanted)
    for node in NODES:
        good = stats[node]["failures"] == 0 and stats[node]["unreachable"] == 0 and stats[node]["changed"] > 0
        expect(f"{node} was patched", good, stats)
        told = json.loads(tasks["Take the verdict"][node]["stdout"])
        expect(f"{node} has its verdict", told["exit"] == 0 and told["changed"] is True, told)
        expect(f"{node} has booted again", boot(node) != before[node])
    settled()
    after = {node: boot(node) for node in NODES}
    stats, tasks = play(**wanted)
    for node in NODES:
        expect(f"{node}: nothing to do", stats[node]["changed"] == 0 and stats[node]["failures"] == 0, stats)
        told = json.loads(tasks["Ask for the node's turn"][node]["stdout"])
        expect(f"{node} says so", told["changed"] is False, told)
        expect(f"{node} was left alone", boot(node) == after[node])


# --- what is pushed in the middle of a cycle ---


def a_config_that_cannot_be_used_keeps_nobody_out_and_is_paged_about():
    node = NODES[1]
    held(node)
    good = on(node, "cat", CONFIG).stdout
    put(node, CONFIG, "no_such_key = 1\n" + good)
    on(node, "systemctl", "reload", "backstop")
    until("the page says so", 60, lambda: any("no_such_key" in page["text"] for page in pages("config-unusable")))
    # Nor does an agent that begins with it.
    pid = agent_pid(node)
    on(node, "systemctl", "restart", "backstop")
    another_agent(node, pid)
    go(node)
    verdict(node)
    until("in service", 60, lambda: node in state()["in_service"])
    refused = on(node, "backstop", "run", "--", "true", check=False)
    expect("no cycle starts with it", 0 < refused.returncode < 100, (refused.returncode, refused.stdout + refused.stderr))
    put(node, CONFIG, good)
    on(node, "systemctl", "reload", "backstop")
    until("a cycle may start", 60, lambda: on(node, "backstop", "check").returncode == 0)


# --- what befalls a node ---


def power_is_lost_in_the_patch():
    """The job is gone with the power: the cycle has failed, the node comes home, the latch stays for a person."""
    node = NODES[0]
    process = held(node)
    hosts("kill", node)
    ended(process)
    until("the others see it out", 60, lambda: status(NODES[1])["in_service"] == 2)
    refused_elsewhere(node)
    hosts("up", node)
    verdict(node, 101)
    until("back in service", 90, lambda: sorted(state()["in_service"]) == NODES)
    until("the latch", 60, lambda: latches(NODES[1]))
    refused_elsewhere(node, (100,))
    clear_latches()


def a_frozen_agent_is_replaced_by_the_watchdog_and_the_cycle_goes_on():
    node = NODES[1]
    held(node)
    pid = agent_pid(node)
    signalled(node, "SIGSTOP")
    another_agent(node, pid)
    until("it goes on", 60, lambda: stage(node) == "patch")
    refused_elsewhere(node)
    go(node)
    verdict(node)


def a_node_that_does_not_pass_its_check_is_paged_about_and_comes_home_when_it_does():
    node = NODES[2]
    process = start_run(node, "--reboot", "never", "--", "systemctl", "stop", "elasticsearch")
    until("somebody is paged", 150, lambda: pages("latched") and any(node in p["text"] for p in pages("latched")[-1:]))
    code, said = ended(process)
    expect("the run ends with OUT", code == 102, (code, said))
    refused_elsewhere(node)
    expect("and goes on", stage(node) == "check", status(node)["cycle"])
    on(node, "systemctl", "start", "elasticsearch")
    settled(latched=True)
    clear_latches()


def a_clock_that_steps_an_hour_changes_nothing():
    node = NODES[0]
    drop_in = "/etc/systemd/system/backstop.service.d/clock.conf"
    put(node, drop_in, "[Service]\nEnvironment=LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1\n"
        "Environment=FAKETIME_TIMESTAMP_FILE=/run/clock FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n")
    hosts("clock", node, "+0")
    on(node, "systemctl", "daemon-reload")
    on(node, "systemctl", "restart", "backstop")
    held(node)
    real = time.time()
    for offset in (3600, -3600):
        hosts("clock", node, f"{offset:+d}")
        stepped = until("the agent's clock has stepped", 30, lambda: abs(status(node)["now_ms"] / 1000 - time.time() - offset) < 60)
        expect("an hour", stepped)
        expect("the cycle goes on", stage(node) == "patch", status(node)["cycle"])
        refused_elsewhere(node)
    go(node)
    hosts("clock", node, "+3600")
    verdict(node)
    hosts("clock", node, "+0")
    expect("no hour was waited for", time.time() - real < 600)
    on(node, "rm", drop_in)
    on(node, "systemctl", "daemon-reload")
    on(node, "systemctl", "restart", "backstop")


def all_three_restart_at_once_by_another_hand_and_no_registration_changes():
    before = {node: boot(node) for node in NODES}
    writes = state()["writes"]
    restarts = [subprocess.Popen([HOSTS, "reboot", node], stdin=subprocess.DEVNULL) for node in NODES]
    for restart in restarts:
        restart.wait(timeout=300)
    for node in NODES:
        other_boot(node, before[node])
    settled()
    expect("nothing was registered or deregistered", state()["writes"] == writes, (writes, state()["writes"]))


# --- whose state is this? ---


def a_state_of_another_instance_is_set_aside_and_a_cloned_machine_id_is_no_identity():
    """The image of a node in mid-cycle carries its state: whoever boots it is not that node."""
    node, clone = NODES[0], NODES[1]
    held(node)
    carried = on(node, "cat", f"{STATE}/state.json").stdout
    own_id = on(clone, "cat", "/etc/machine-id").stdout
    writes = state()["writes"]
    on(clone, "systemctl", "stop", "backstop")
    put(clone, f"{STATE}/state.json", carried)
    put(clone, "/etc/machine-id", on(node, "cat", "/etc/machine-id").stdout)
    on(clone, "chown", "backstop:backstop", f"{STATE}/state.json")
    on(clone, "systemctl", "start", "backstop")
    until("the clone looks around", 60, lambda: status(clone)["in_service"] == 2)
    names = on(clone, "ls", STATE).stdout
    expect("it was set aside", "state.json.quarantine" in names, names)
    expect("the clone has no cycle", stage(clone) is None, status(clone)["cycle"])
    expect("and freed no slot", status(clone)["record"]["slots"], status(clone)["record"])
    expect("nobody was registered", state()["writes"] == writes)
    refused_elsewhere(node)
    go(node)
    verdict(node)
    put(clone, "/etc/machine-id", own_id)
    settled(latched=True)
    clear_latches()


def a_state_directory_in_memory_lets_no_cycle_begin():
    node = NODES[2]
    on(node, "systemctl", "stop", "backstop")
    on(node, "mount", "-t", "tmpfs", "tmpfs", STATE)
    on(node, "systemctl", "start", "backstop")
    until("it is an agent", 60, lambda: status(node)["in_service"] == 3)
    refused = on(node, "backstop", "run", "--", "true", check=False)
    said = " ".join((refused.stdout + refused.stderr).split())
    expect("it is refused", refused.returncode == 17 and "in memory" in said, (refused.returncode, said))
    expect("the node is in service", node in state()["in_service"])
    on(node, "systemctl", "stop", "backstop")
    on(node, "umount", STATE)
    on(node, "systemctl", "start", "backstop")


# --- the sandbox ---


PROBE = '''
import os, signal, socket, sys

def child(what):
    """True where it could."""
    pid = os.fork()
    if pid == 0:
        try:
            what()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def write(path):
    with open(path, "w") as file:
        file.write("x")

def carried(folder):
    path = folder + "/true"
    with open("/bin/true", "rb") as true, open(path, "wb") as copy:
        copy.write(true.read())
    os.chmod(path, 0o755)
    os.execv(path, ["true"])

def memory():
    fd = os.memfd_create("true", 0)
    with open("/bin/true", "rb") as true:
        os.write(fd, true.read())
    os.execve(fd, ["true"], {})

never = {
    "executes /bin/true": lambda: os.execv("/bin/true", ["true"]),
    "executes a shell": lambda: os.execv("/bin/sh", ["sh", "-c", "true"]),
    "executes by the loader": lambda: os.execv("/lib64/ld-linux-x86-64.so.2", ["ld", "/bin/true"]),
    "executes from its state": lambda: carried("/var/lib/backstop"),
    "executes from its runtime directory": lambda: carried("/run/backstop"),
    "executes from /tmp": lambda: carried("/tmp"),
    "executes from /dev/shm": lambda: carried("/dev/shm"),
    "executes from memory": memory,
    "writes to /etc": lambda: write("/etc/probe"),
    "writes to its own config": lambda: write("/etc/backstop/backstop.toml"),
    "writes to /usr": lambda: write("/usr/bin/probe"),
    "writes to /var": lambda: write("/var/probe"),
    "writes to the lines of jobs": lambda: write("/var/lib/backstop-jobs/probe"),
    "reads a secret of root": lambda: open("/etc/shadow").read(),
    "reads another user's file": lambda: open("/srv/of-alice").read(),
    "looks into a home": lambda: os.listdir("/home/alice"),
    "becomes root": lambda: os.setuid(0),
    "opens a raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "signals PID 1": lambda: os.kill(1, signal.SIGCONT),
}
must = {
    "writes to its state": lambda: write("/var/lib/backstop/probe"),
    "writes to its runtime directory": lambda: write("/run/backstop/probe"),
    "reads its config": lambda: open("/etc/backstop/backstop.toml").read(),
    "opens a connection": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
}
wrong = ["it " + name for name, what in never.items() if child(what)]
wrong += ["it never " + name for name, what in must.items() if not child(what)]
for name in ("/var/lib/backstop/probe", "/var/lib/backstop/true", "/run/backstop/probe", "/run/backstop/true"):
    if os.path.exists(name):
        os.unlink(name)
print("\\n".join(wrong) or "all held")
sys.exit(1 if wrong else 0)
'''


def the_sandbox_lets_the_agent_do_its_work_and_nothing_else():
    """Another program, in what is otherwise the agent's own unit, as it is shipped."""
    node = NODES[0]
    shipped = on(node, "cat", "/usr/lib/systemd/system/backstop.service").stdout
    left_out = ("ExecReload=", "Restart=", "WatchdogSec=", "WatchdogSignal=", "NotifyAccess=")
    lines = [line for line in shipped.splitlines() if not line.startswith(left_out)]
    unit = "\n".join(lines).replace("Type=notify", "Type=oneshot")
    run = next(line for line in lines if line.startswith("ExecStart="))
    unit = unit.replace(run, "ExecStart=/usr/bin/python3.11 -S /opt/probe.py\nExecPaths=/usr/bin/python3.11")
    put(node, "/opt/probe.py", PROBE)
    put(node, "/srv/of-alice", "a secret")
    on(node, "sh", "-c", "chown alice:alice /srv/of-alice && chmod 0600 /srv/of-alice && chmod 0644 /opt/probe.py")
    put(node, "/run/systemd/system/probe.service", unit)
    on(node, "systemctl", "daemon-reload")
    done = on(node, "systemctl", "start", "probe", check=False)
    said = on(node, "journalctl", "-u", "probe", "-o", "cat", "--no-pager").stdout
    expect("the sandbox holds", done.returncode == 0 and "all held" in said, said)
    on(node, "rm", "/run/systemd/system/probe.service")
    on(node, "systemctl", "daemon-reload")


# What the agent's user asks over the bus, and what polkit says by the package's rule.
SYSTEMD = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
JOB = "backstop-job@probe.service"
DENIED = ("Access denied", "Permission denied", "Interactive authentication required")
NEVER_ASKED = [
    (SYSTEMD, "StartUnit", "ss", "ssh.service", "fail"),
    (SYSTEMD, "StopUnit", "ss", "elasticsearch.service", "fail"),
    (SYSTEMD, "RestartUnit", "ss", "backstop.service", "fail"),
    (SYSTEMD, "KillUnit", "ssi", "elasticsearch.service", "all", "15"),
    # Its name would be allowed: what it runs is the caller's.
    (SYSTEMD, "StartTransientUnit", "ssa(sv)a(sa(sv))", "backstop-job@other.service", "fail",
     "1", "ExecStart", "a(sasb)", "1", "/bin/true", "1", "/bin/true", "false", "0"),
    (SYSTEMD, "SetUnitProperties", "sba(sv)", JOB, "true", "1", "CPUWeight", "t", "1"),
    (SYSTEMD, "EnableUnitFiles", "asbb", "1", "ssh.service", "false", "false"),
    (SYSTEMD, "Reload"),
    (LOGIND, "PowerOff", "b", "false"),
]


def asked_as_the_agent(node, service, method, *arguments):
    return on(node, "runuser", "-u", "backstop", "--", "busctl", "--system", "call", *service, method, *arguments, check=False)


def the_agents_user_may_ask_for_its_jobs_and_a_restart_and_for_nothing_else():
    node = NODES[0]
    # Without ExecStopPost= nothing is written down of it.
    put(node, f"/run/systemd/system/{JOB}.d/job.conf", "[Service]\nExecStart=/bin/sleep 1000\nExecStopPost=\n")
    on(node, "systemctl", "daemon-reload")

    def allowed(*request):
        done = asked_as_the_agent(node, *request)
        expect(f"{request[1]} is allowed", done.returncode == 0, (request, done.stdout + done.stderr))
        return done.stdout

    def works():
        return on(node, "systemctl", "show", "-P", "MainPID", JOB).stdout.strip() != "0"

    allowed(SYSTEMD, "StartUnit", "ss", JOB, "fail")
    # From here on the unit is loaded, so that polkit is asked about it.
    until("the job works", 30, works)
    for request in NEVER_ASKED:
        done = asked_as_the_agent(node, *request)
        denied = done.returncode != 0 and any(words in done.stderr for words in DENIED)
        expect(f"{request[1]} is denied", denied, (request, done.returncode, done.stdout + done.stderr))
    allowed(SYSTEMD, "KillUnit", "ssi", JOB, "all", "9")
    until("the job has failed", 30, lambda: on(node, "systemctl", "is-failed", JOB))
    allowed(SYSTEMD, "ResetFailedUnit", "s", JOB)
    allowed(SYSTEMD, "StartUnit", "ss", JOB, "fail")
    until("it works again", 30, works)
    allowed(SYSTEMD, "StopUnit", "ss", JOB, "replace")
    until("the job is stopped", 30, lambda: not works())
    said = allowed(LOGIND, "CanReboot")
    expect("and it may restart the machine", '"yes"' in said, said)
    on(node, "systemctl", "reset-failed", JOB, check=False)
    on(node, "rm", "-r", f"/run/systemd/system/{JOB}.d")
    on(node, "systemctl", "daemon-reload")


def the_bus_answers_as_the_manager_in_memory_does():
    """The unit tests' own program: the job runner's body of tests for a manager of units, against systemd itself."""
    node = NODES[0]
    hosts("copy", node, os.environ["BACKSTOP_UNIT_TESTS"], "/srv/unit-tests")
    name = "jobs::systemd::contract::systemd_behaves_as_the_manager_in_memory_does"
    done = on(node, "/srv/unit-tests", "--ignored", "--exact", name, check=False)
    expect("they hold", done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr)
    on(node, "rm", "/srv/unit-tests")


def the_units_are_sound():
    node = NODES[0]
    # Under another name: the drop-in of these hosts is not part of what is shipped.
    unit = "/run/systemd/shipped.service"
    on(node, "cp", "/usr/lib/systemd/system/backstop.service", unit)
    # A job's template has no command until the administrator gives it one.
    drop_in = "/run/systemd/system/backstop-job@example.service.d"
    put(node, f"{drop_in}/job.conf", "[Service]\nExecStart=/usr/bin/apt-get -y dist-upgrade\n")
    for each in (unit, "backstop.service", "backstop-job@example.service"):
        done = on(node, "systemd-analyze", "verify", each, check=False)
        said = [line for line in (done.stdout + done.stderr).splitlines() if line]
        expect(f"{each} is sound", done.returncode == 0 and not said, said)
    on(node, "rm", "-r", drop_in)
    text = on(node, "systemd-analyze", "security", "--offline=yes", "--no-pager", unit).stdout
    exposure = float(text.strip().splitlines()[-1].split(":")[1].split()[0])
    expect("the sandbox is tight", exposure <= 1.5, exposure)
