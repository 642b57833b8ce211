"""The path of a newcomer: the commands of README.md, "Install", typed as they are printed, on the three hosts."""
import os
import re

from kit import CONFIG, MACHINE, NODES, ROOT, agent_pid, expect, hosts, on, put, settled, state, until

CLONE = "/srv/clone"
# Those need a toolchain, and have been typed before this: by .ci/run, or by `package()` in run.
BUILT = ["cargo build --release --locked", "packaging/build --rpm"]
# Typed on one node only.
ONCE = ["backstop init --fleet", "backstop alert test"]
# What somebody who only looks is told: no cycle starts in that mode.
OBSERVING = {"backstop check": 12}
# The person who is to look, and the cloud's own command line, which reads what it is given.
ALICE = "useradd --create-home alice"
AWS_CLI = """#!/usr/bin/python3
import json, sys
policy, = [word.removeprefix("file://") for word in sys.argv if word.startswith("file://")]
assert json.load(open(policy))["Statement"]
"""

# This world is another one than AWS, and a test is shorter than a night.
VALUES = [
    ("https://pager.example.com/hooks/backstop", "http://127.0.0.1:8080/pages"),
    ('record_endpoints = ["https://es-data-1:9200", "https://es-data-2:9200"]',
     'record_endpoints = ["http://es-data-1:9201", "http://es-data-2:9202"]\nurl = "http://{hostname}:9200"'),
]
MORE = """
[elbv2]
endpoint_url = "http://127.0.0.1:5000"
[node]
imds_endpoint = "http://127.0.0.1:1338"
[check]
over = "2s"
every = "500ms"
[drain]
quiet = "1s"
[settle]
bake = "1s"
[deadlines]
check = "25s"
[reconcile]
every = "5s"
[limits]
cycles_per_hour = 1000
cycles_per_day = 1000
reboots_per_day = 1000
free_disk_mib = 4
"""

# A plain http URL is taken on loopback only, as it should be: so the world is there, by relays.
RELAYS = [5000, 1338, 8080]
RELAY_SOCKET = "[Socket]\nListenStream=127.0.0.1:%i\n[Install]\nWantedBy=sockets.target\n"
RELAY_SERVICE = f"[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd {MACHINE}:%i\n"
# The node lives until its stdin ends.
NODE = """
[Unit]
After=network.target
[Service]
ExecStart=/bin/sh -c 'tail -f /dev/null | exec /usr/bin/backstop rehearse-node --address @ADDRESS@:9200 --name @NAME@ @PEERS@'
[Install]
WantedBy=multi-user.target
"""
# Credentials come from the same metadata. Where a boot id of the container's own is mounted over the kernel's, two settings
# of the unit show the agent the machine's (backstop.service says so). A minute until the watchdog bites is long for a test.
DROP_IN = """
[Service]
Environment=AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:1338
ProtectKernelTunables=no
ProtectControlGroups=no
WatchdogSec=15
RestartSec=1
"""


def section():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        text = file.read()
    return text.split("\n## Install\n")[1].split("\n## ")[0]


def printed():
    """Each command of the section, and its example of a config as one of them, in order."""
    found = []
    for block in re.finditer(r"^ *```(\w*)\n(.*?)^ *```|`((?:backstop|systemctl) [^`]+)`", section(), re.M | re.S):
        language, body, inline = block.groups()
        if inline:
            found.append(inline)
        elif language == "toml":
            found.append("CONFIG " + re.sub(r"^   ", "", body, flags=re.M))
        else:
            found += [line.strip() for line in body.splitlines() if line.strip()]
    return found


def typed(node, text):
    done = on(node, "sh", "-c", f"cd {CLONE} && {text}", check=False)
    code = OBSERVING.get(text, 0)
    expect(f"{node}: {text}", done.returncode == code, (done.returncode, done.stdout + done.stderr))
    return done.stdout


def around(at, deb):
    """What is there before a newcomer begins: a node that serves, its network, a clone."""
    for node in NODES:
        on(node, "mkdir", "-p", CLONE)
        hosts("copy", node, os.path.join(ROOT, "config"), f"{CLONE}/config")
        hosts("copy", node, deb, f"{CLONE}/")
        put(node, "/usr/local/bin/aws", AWS_CLI)
        on(node, "chmod", "0755", "/usr/local/bin/aws")
        on(node, "sh", "-c", ALICE)
        peers = " ".join(f"--peer {name}={address}:9200" for name, address in at.items() if name != node)
        unit = NODE.replace("@ADDRESS@", at[node]).replace("@NAME@", node).replace("@PEERS@", peers)
        put(node, "/etc/systemd/system/elasticsearch.service", unit)
        put(node, "/etc/systemd/system/relay@.socket", RELAY_SOCKET)
        put(node, "/etc/systemd/system/relay@.service", RELAY_SERVICE)
        put(node, "/etc/systemd/system/backstop.service.d/world.conf", DROP_IN)
        on(node, "systemctl", "daemon-reload")
        relays = [f"relay@{port}.socket" for port in RELAYS]
        on(node, "systemctl", "enable", "--quiet", "--now", *relays)


def own_values(text):
    for old, new in VALUES:
        expect("the README's config is as expected", old in text, old)
        text = text.replace(old, new)
    return re.sub(r"^arn = .*$", f'arn = "{state()["arn"]}"', text, flags=re.M) + MORE


def follow(at, deb):
    """A newcomer installs, looks on for a while, and switches on."""
    around(at, deb)
    text = printed()
    example, = [line.removeprefix("CONFIG ") for line in text if line.startswith("CONFIG ")]
    needed = ["dpkg -i ", "usermod ", "aws iam ", "backstop config check", "systemctl enable --now backstop", "backstop init",
              "backstop status", "backstop check", "systemctl reload backstop"]
    for start in needed:
        expect(f"the README has `{start}…`", any(line.startswith(start) for line in text), text)
    for line in text:
        if line.split("#")[0].strip() in BUILT:
            continue
        if line.startswith("usermod "):
            # The stand-in for Elasticsearch is in the package; the nodes serve before anybody looks after them.
            for node in NODES:
                on(node, "systemctl", "enable", "--quiet", "--now", "elasticsearch")
            until("three nodes are healthy", 60, lambda: sorted(state()["in_service"]) == NODES)
        if line == "systemctl reload backstop":
            until("all three are seen", 90, lambda: all(on(n, "backstop", "status").returncode == 0 for n in NODES))
        for node in NODES[:1] if line in ONCE else NODES:
            if line.startswith("CONFIG "):
                put(node, CONFIG, example)
            elif line == "systemctl enable --now backstop":
                # As printed it can be used; from here on with values of one's own.
                put(node, CONFIG, own_values(example))
                on(node, "backstop", "config", "check")
                typed(node, line)
            elif line.startswith("dpkg -i "):
                typed(node, line)
                expect("the package starts nothing by itself", agent_pid(node) == "0")
                owner = on(node, "stat", "-c", "%U:%G %a", CONFIG).stdout.strip()
                expect("the config is for root and the agent", owner == "root:backstop 640", owner)
                sample = on(node, "backstop", "config", "check", check=False)
                expect("the sample says what is missing", sample.returncode == 2 and "fleet" in sample.stderr, sample.stderr)
            elif line in ONCE or line in ("backstop status", "backstop check"):
                until(f"{line} on {node}", 90, lambda: typed(node, line) or True)
            elif line == "systemctl reload backstop":
                on(node, "sed", "-i", 's/^mode = .*/mode = "act"/', CONFIG)
                typed(node, line)
            else:
                typed(node, line)
    alice = on(NODES[0], "runuser", "-u", "alice", "--", "backstop", "status", check=False)
    expect("whoever is in the group may look", alice.returncode == 0, alice.stdout + alice.stderr)
    settled()
    told = [page for page in state()["pages"] if page["event"] != "test" and page.get("kind") != "test"]
    expect("nobody was woken while three nodes served", not told, told)
