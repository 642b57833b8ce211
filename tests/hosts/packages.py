"""The packages: how they change under a cycle, and how they go."""
import os

from kit import (
    CONFIG, NODES, STATE, agent_pid, another_agent, command, ended, expect, go, held, hosts, on, put, settled, stage, there, until,
    verdict,
)

def newer(deb):
    """The same package, one version on."""
    folder = os.path.join(os.environ["HOSTS_DIR"], "newer")
    command(["rm", "-rf", folder])
    command(["dpkg-deb", "--raw-extract", deb, folder])
    control = os.path.join(folder, "DEBIAN/control")
    with open(control, encoding="utf-8") as file:
        text = file.read()
    version = next(line for line in text.splitlines() if line.startswith("Version: "))
    with open(control, "w", encoding="utf-8") as file:
        file.write(text.replace(version, version + ".1"))
    command(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", folder, f"{folder}.deb"])
    return f"{folder}.deb", version.removeprefix("Version: ") + ".1"


def a_job_that_upgrades_the_agent_goes_on_and_the_new_agent_brings_the_node_home():
    node = NODES[2]
    deb, version = newer(os.environ["BACKSTOP_DEB"])
    hosts("copy", node, deb, "/srv/newer.deb")
    pid = agent_pid(node)
    process = held(node, first="dpkg -i /srv/newer.deb && echo $$ > /srv/job")
    pid = another_agent(node, pid)
    seen = on(node, "dpkg-query", "-W", "-f", "${Version} ${Status}", "backstop").stdout
    expect("the job has installed it", seen == f"{version} install ok installed", seen)
    job = on(node, "cat", "/srv/job").stdout.strip()
    until("the new agent goes on with the cycle", 60, lambda: stage(node) == "patch")
    expect("the job was not killed", there(node, f"/proc/{job}"))
    # Whole packages cannot go now, nor by what is stored.
    gone = on(node, "dpkg", "-r", "backstop", check=False)
    expect("removal is refused", gone.returncode != 0 and "backstop retire" in gone.stderr, gone.stderr)
    on(node, "systemctl", "stop", "backstop")
    gone = on(node, "dpkg", "-r", "backstop", check=False)
    expect("and by what is stored", gone.returncode != 0 and "backstop status" in gone.stderr, gone.stderr)
    whole = on(node, "dpkg-query", "-W", "-f", "${Status}", "backstop").stdout
    expect("the package is whole", whole.endswith(" ok installed"), whole)
    on(node, "systemctl", "start", "backstop")
    go(node)
    seen = verdict(node)
    expect("the cycle was a change", seen["changed"] is True, seen)
    ended(process)
    settled()
    pid = agent_pid(node)
    on(node, "dpkg", "-i", "/srv/newer.deb")
    another_agent(node, pid, 30)


def purge_keeps_the_state():
    node = NODES[2]
    on(node, "systemctl", "stop", "elasticsearch")
    gone = on(node, "dpkg", "--purge", "backstop")
    expect("it says what is kept", STATE in gone.stdout, gone.stdout)
    expect("the state is kept", there(node, f"{STATE}/state.json"))
    for path in ("/etc/backstop", "/usr/bin/backstop", "/run/backstop"):
        expect(f"{path} is gone", not there(node, path))


def the_rpm_comes_changes_and_goes_as_the_deb_does():
    """On the node that the .deb has left. Debian's rpm is the real one; it knows no dependencies here."""
    node = NODES[2]
    rpm = ("rpm", "--force-debian", "--nodeps")
    hosts("copy", node, os.environ["BACKSTOP_RPM"], "/srv/backstop.rpm")
    on(node, *rpm, "--install", "/srv/backstop.rpm")
    expect("it starts nothing by itself", agent_pid(node) == "0")
    owner = on(node, "stat", "-c", "%U:%G %a", CONFIG).stdout.strip()
    expect("the config is for root and the agent", owner == "root:backstop 640", owner)
    put(node, CONFIG, on(NODES[0], "cat", CONFIG).stdout)
    on(node, "systemctl", "enable", "--quiet", "--now", "backstop", "elasticsearch")
    settled()
    pid = agent_pid(node)
    process = held(node)
    gone = on(node, *rpm, "--erase", "backstop", check=False)
    expect("removal is refused", gone.returncode != 0 and "backstop retire" in gone.stderr, gone.stderr)
    on(node, *rpm, "--upgrade", "--force", "/srv/backstop.rpm")
    another_agent(node, pid)
    until("the new agent goes on with the cycle", 60, lambda: stage(node) == "patch")
    kept = on(node, "grep", "-c", "^fleet = ", CONFIG).stdout.strip()
    expect("the config is the administrator's", kept == "1", kept)
    go(node)
    verdict(node)
    ended(process)
    settled()
    on(node, "systemctl", "stop", "elasticsearch")
    gone = on(node, *rpm, "--erase", "backstop")
    expect("it says what is kept", STATE in gone.stdout, gone.stdout)
    expect("the state is kept", there(node, f"{STATE}/state.json"))
    expect("the program is gone", not there(node, "/usr/bin/backstop"))
