"""Jobs that do what jobs do: each has its verdict in a bounded time, and the node is back."""
import json
import os
import time

from kit import (
    CONFIG, NODES, boot, clear_latches, ended, expect, latches, on, other_boot, put, say, settled, start_run, state,
    until, verdict,
)

NODE = NODES[1]
# What `run` says of each code, by whose table. With BACKSTOP_HOSTS_CODES=all every row, otherwise one of each kind.
CODES = {
    "": {0: 0, 1: 101, 255: 101},
    "apt": {0: 0, 100: 101},
    "dnf": {0: 0, 1: 101, 3: 101, 100: 101, 200: 101},
    "zypper": {0: 0, 1: 101, 4: 101, 7: 101, 8: 101, 100: 101, 101: 101, 102: 0, 103: 0, 104: 101, 105: 101, 106: 101, 107: 101},
}
SOME = [("apt", 100), ("zypper", 102), ("zypper", 106)]
# Seconds in which a job of no duration has its verdict, on a slow machine.
BOUND = 150


def defined(name, text):
    put(NODE, f"/etc/systemd/system/backstop-job@{name}.service.d/job.conf", f"[Service]\n{text}\n")
    on(NODE, "systemctl", "daemon-reload")


def judged(what, code, *args):
    """A run to its end, the node back, and a latch exactly where it failed."""
    begun = time.monotonic()
    seen, said = ended(start_run(NODE, *args), BOUND)
    expect(f"{what}: the verdict is {code}", seen == code, (seen, said))
    home(what, code, begun)
    return said


def home(what, code, begun):
    until(f"{what}: back in service", BOUND, lambda: sorted(state()["in_service"]) == NODES)
    settled(latched=True)
    if code < 100:
        expect(f"{what}: no latch", not latches(NODES[0]))
    else:
        expect(f"{what}: a latch", latches(NODES[0]))
        clear_latches()
    say(f"  {what}: {code}, {time.monotonic() - begun:.0f} s")


def jobs_of_every_kind_have_their_verdict_and_the_node_is_back():
    judged("asks a question", 101, "--", "sh", "-c", "read answer")
    judged("is killed", 101, "--", "sh", "-c", "kill -KILL $$")
    judged("is no program", 2, "--", "/usr/bin/no-such-program")
    put(NODE, "/srv/broken", "#!/no/such/interpreter\n")
    on(NODE, "chmod", "0755", "/srv/broken")
    judged("never starts", 101, "--", "/srv/broken")
    judged("leaves a daemon with its pipe", 0, "--", "sh", "-c", "setsid sleep 7654 & exit 0")
    left = on(NODE, "pgrep", "-f", "sleep 7654", check=False)
    expect("what it left in its unit has ended with it", left.returncode == 1, left.stdout)


def taken_over(config, quiet_ms):
    """The agent tells no deadline before its stage; but the quiet period, which is changed along with it, it does."""
    put(NODE, CONFIG, config)
    on(NODE, "systemctl", "reload", "backstop")

    def in_force():
        return json.loads(on(NODE, "backstop", "check", "--json", check=False).stdout)["would_take"]
    until("the agent has the new config", 30, lambda: ["quiet period", quiet_ms] in in_force())


def a_job_that_hangs_is_ended_at_its_deadline():
    good = on(NODE, "cat", CONFIG).stdout
    changed = good.replace("[deadlines]\n", '[deadlines]\npatch = "8s"\n').replace('quiet = "1s"\n', 'quiet = "2s"\n')
    expect("the config is as expected", '"8s"' in changed and '"2s"' in changed, good)
    taken_over(changed, 2000)
    judged("hangs, deaf to SIGTERM", 101, "--reboot", "always", "--", "sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    taken_over(good, 1000)


def a_job_that_restarts_the_machine_itself_has_failed_unless_it_said_so():
    before, begun = boot(NODE), time.monotonic()
    start_run(NODE, "--reboot", "never", "--", "sh", "-c", "systemctl reboot; sleep 1000")
    other_boot(NODE, before)
    verdict(NODE, 101)
    home("restarts the machine", 101, begun)
    before, begun = boot(NODE), time.monotonic()
    start_run(NODE, "--job-reboots", "--", "sh", "-c", "systemctl reboot; sleep 1000")
    other_boot(NODE, before)
    verdict(NODE, 0)
    home("restarts the machine, as it said", 0, begun)


def exit_codes_mean_what_the_package_manager_means():
    every = [(table, code) for table, codes in CODES.items() for code in codes]
    for table, code in every if os.environ.get("BACKSTOP_HOSTS_CODES") == "all" else SOME:
        defined("codes", f"ExecStart=/bin/sh -c 'exit {code}'\nEnvironment=BACKSTOP_EXIT_CODES={table}")
        expected, before, begun = CODES[table][code], boot(NODE), time.monotonic()
        what = f"{table or 'plain'} {code}"
        if (table, code) == ("zypper", 102):
            # "A reboot is needed."
            start_run(NODE, "--job", "codes")
            other_boot(NODE, before)
            verdict(NODE, expected)
            home(what, expected, begun)
        else:
            judged(what, expected, "--job", "codes")
            expect(f"{what}: no restart", boot(NODE) == before)
