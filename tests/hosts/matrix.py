"""Every stage of a cycle, and what may befall the node in it: once it is over the node is in service and its slot freed."""
import os
import time

from kit import (
    NODES, REFUSED, STATE, Wrong, agent_pid, another_agent, at_rest, clear_latches, command, expect, go, hosts, no_request_failed, on,
    refused_elsewhere, say, settled, signalled, stage, start_run, state, tell, until, verdict,
)

STAGES = ["claim", "deregister", "drain", "patch", "reboot", "check", "register", "settle", "release"]
FAULTS = ["restart", "kill", "power", "cut", "silence", "full", "read-only"]
# The most telling first: so many as the time allows are played.
FIRST = [
    ("patch", "kill"), ("drain", "power"), ("register", "cut"), ("patch", "full"), ("settle", "kill"), ("check", "read-only"),
    ("release", "power"), ("deregister", "restart"), ("reboot", "kill"), ("claim", "power"), ("patch", "restart"),
    ("deregister", "read-only"),
]
# Seconds in which cells may begin; "all": all of them, about half an hour; or some by name.
BUDGET = os.environ.get("BACKSTOP_HOSTS_MATRIX", "100")
# Here the node is registered: what cuts it off takes requests with it, as it would without any agent.
SERVING = ("claim", "deregister", "settle", "release")


def cells():
    rest = [(stage, fault) for stage in STAGES for fault in FAULTS if (stage, fault) not in FIRST]
    return FIRST + rest


def reach(node, wanted):
    """A cycle that stays in that stage until `let_go`."""
    on(node, "rm", "-f", "/srv/go", "/srv/works")
    if wanted == "claim":
        tell("refuse/record")
    elif wanted == "deregister":
        tell("refuse/DeregisterTargets")
    elif wanted == "drain":
        tell("slow")
    job = "touch /srv/works; while [ ! -e /srv/go ]; do sleep 0.2; done"
    reboot = "always" if wanted == "reboot" else "never"
    process = start_run(node, "--reboot", reboot, "--", "/bin/sh", "-c", job)
    if STAGES.index(wanted) > STAGES.index("patch"):
        until("the job works", 90, lambda: on(node, "test", "-e", "/srv/works"))
        if wanted == "reboot":
            # The shutdown waits for this, at most five seconds.
            delay = ("systemd-inhibit", "--what=shutdown", "--mode=delay", "sleep", "1000")
            on(node, "systemd-run", "--quiet", "--unit=delay", *delay)
        elif wanted == "check":
            on(node, "systemctl", "stop", "elasticsearch")
        elif wanted == "register":
            tell("refuse/RegisterTargets")
        else:
            tell("slow")
        go(node)
    if wanted == "release":
        until("the node settles", 90, lambda: stage(node) == "settle")
        tell("refuse/record")
    until(f"the cycle is in {wanted}", 90, lambda: stage(node) == wanted)
    return process


def let_go(node):
    tell("mend")
    until("the node starts", 60, lambda: on(node, "systemctl", "start", "elasticsearch").returncode == 0)
    go(node)


def disk(node):
    """The node's state disk, on the machine's side."""
    return os.path.join(os.environ["HOSTS_DIR"], "host", node, "state")


def befall(node, wanted, fault):
    """The fault, what the others see of it, and its end."""
    codes = REFUSED + ((13, 17) if wanted == "release" else ())
    pid = agent_pid(node)
    if fault == "restart":
        on(node, "systemctl", "restart", "--no-block", "backstop")
    elif fault == "kill":
        signalled(node, "SIGKILL")
    elif fault == "power":
        hosts("kill", node)
    elif fault == "cut":
        hosts("cut", node)
    elif fault == "silence":
        hosts("cut", node, "--silent")
    elif fault == "full":
        # Ends with "no space left".
        on(node, "dd", "if=/dev/zero", f"of={STATE}/filler", "bs=64k", check=False)
    elif fault == "read-only":
        # The file system, as after an error of its disk. Refused while a file is open for writing: so under an agent that
        # begins with it.
        on(node, "systemctl", "stop", "backstop")
        command(["mount", "-o", "remount,ro", disk(node)])
        on(node, "systemctl", "start", "--no-block", "backstop")
    else:
        raise Wrong(f"no such fault: {fault}")
    if wanted != "claim":
        # There the record takes no writes at all: whoever asks waits as this node does.
        refused_elsewhere(node, codes)
    if fault in ("restart", "kill") and wanted != "reboot":
        another_agent(node, pid)
    elif fault == "power":
        hosts("up", node)
    elif fault in ("cut", "silence"):
        # That the others page about a holder of a slot whose agent is silent takes half an hour: src/core/reconcile has it.
        hosts("mend", node)
    elif fault in ("full", "read-only"):
        # Home without its disk.
        let_go(node)
        if wanted in ("claim", "deregister"):
            until("the cycle goes home", 120, lambda: stage(node) != wanted)
        until("in service while the disk takes nothing", 150, lambda: node in state()["in_service"])
        if fault == "full":
            on(node, "rm", "-f", f"{STATE}/filler")
        else:
            writable(node)


def writable(node):
    """A host that booted meanwhile, and an agent that started then, have mounts of their own that began read-only."""
    command(["mount", "-o", "remount,rw", disk(node)])
    on(node, "mount", "-o", "remount,bind,rw", STATE)
    mounts = on(node, "cat", f"/proc/{agent_pid(node)}/mountinfo", check=False).stdout.splitlines()
    if any(line.split()[4] == STATE and line.split()[5].startswith("ro") for line in mounts):
        on(node, "systemctl", "restart", "backstop")


def cell(number, wanted, fault):
    node = NODES[number % len(NODES)]
    tell("traffic")
    reach(node, wanted)
    befall(node, wanted, fault)
    let_go(node)
    settled(latched=True)
    if fault in ("restart", "kill") and wanted not in ("claim", "deregister"):
        verdict(node)
        expect("a new agent is no failure", at_rest(), "a latch is left")
    clear_latches()
    settled()
    if fault not in ("power", "cut", "silence") or wanted not in SERVING:
        no_request_failed()


def repair():
    """After a cell that failed: whatever may be left of its fault, so that the next ones are worth playing."""
    tell("mend")
    hosts("up", *NODES)
    for node in NODES:
        hosts("mend", node)
        writable(node)
        on(node, "rm", "-f", f"{STATE}/filler")
        on(node, "systemctl", "restart", "--no-block", "backstop")
        let_go(node)
    settled(latched=True)
    clear_latches()


def every_fault_in_every_stage():
    """As many as the time allows (BACKSTOP_HOSTS_MATRIX)."""
    begun = time.monotonic()
    chosen = cells()
    if ":" in BUDGET:
        chosen = [tuple(named.split(":")) for named in BUDGET.split(",")]
        unknown = [named for named in chosen if named not in cells()]
        expect("stages and faults are known", not unknown, (unknown, STAGES, FAULTS))
    played, failed = 0, []
    for number, (wanted, fault) in enumerate(chosen):
        if BUDGET.isdigit() and time.monotonic() - begun > int(BUDGET):
            break
        say(f"  {wanted}: {fault}")
        try:
            cell(number, wanted, fault)
        except Wrong as wrong:
            failed.append(f"{fault} in {wanted} (alone: BACKSTOP_HOSTS_MATRIX={wanted}:{fault}): {wrong}")
            say(f"  FAILED: {failed[-1]}")
            repair()
        played += 1
    say(f"  {played} of {len(cells())} played")
    expect("every one held", not failed, "\n".join(failed))
