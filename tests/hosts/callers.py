"""The other ways in which patch automation calls: each of examples/, run as its caller runs it. (patch.yml: scenes.py.)"""
import json
import os
import re

from kit import NODES, ROOT, boot, clear_latches, expect, hosts, latches, on, other_boot, put, settled, state, there, until

EXAMPLES = os.path.join(ROOT, "examples")
# Nothing is patched twice: what the callers ask before.
NEEDED = "test ! -e /var/lib/patched"
PATCH = "touch /var/lib/patched"


def example(name):
    with open(os.path.join(EXAMPLES, name), encoding="utf-8") as file:
        return file.read()


def unpatched():
    for node in NODES:
        on(node, "rm", "-f", "/var/lib/patched")


# --- AWS Systems Manager ---


def script(**values):
    """The document's step as SSM writes it to a file: its lines, with the parameters in them."""
    document = json.loads(example("ssm-document.json"))
    known = document["parameters"]
    expect("the document has those parameters", not set(values) - set(known), known)
    step, = document["mainSteps"]
    expect("a shell script", step["action"] == "aws:runShellScript", step)
    text = "\n".join(step["inputs"]["runCommand"])
    for name, parameter in known.items():
        value = values.get(name, parameter["default"])
        pattern = parameter.get("allowedPattern")
        expect(f"{name} may be {value}", not pattern or re.search(pattern, value), pattern)
        text = text.replace("{{ " + name + " }}", value)
    expect("no parameter is left over", "{{" not in text, text)
    return text


def step(node):
    """Runs it as root without a terminal, as the SSM agent does."""
    return on(node, "sh", "-c", "exec sh /srv/_script.sh < /dev/null", check=False)


def the_ssm_document_has_the_machine_restarted_by_ssm_and_ends_with_the_verdict():
    unpatched()
    node = NODES[0]
    put(node, "/srv/_script.sh", script(Command=f"sh -c '{PATCH} /run/reboot-required'", Needed=NEEDED))
    before = boot(node)
    first = step(node)
    expect("SSM is asked to restart the machine", first.returncode == 194, (first.returncode, first.stdout + first.stderr))
    expect("which backstop does not", boot(node) == before)
    expect("the node is out", node not in state()["in_service"], state())
    hosts("reboot", node)
    other_boot(node, before)
    # SSM runs the step again as soon as its agent is up, whether backstop's is or not.
    again = step(node)
    expect("the verdict is taken after the restart", again.returncode == 0, (again.returncode, again.stdout + again.stderr))
    expect("it is that cycle's", "nothing to do" not in again.stdout and "DONE" in again.stdout, again.stdout)
    expect("the node is in service", node in state()["in_service"])
    third = step(node)
    expect("and once", third.returncode == 0 and "nothing to do" in third.stdout, (third.returncode, third.stdout + third.stderr))


# --- CodeDeploy ---


def hook(node, release):
    """One lifecycle event of a deployment, as the CodeDeploy agent carries it out: the revision's files are at their
    destination, and the hook's script is run from the archive as the user that appspec.yml names."""
    spec = example("codedeploy/appspec.yml")
    runs = re.search(r"^ *AfterInstall:\n *- location: (\S+)\n *timeout: (\d+)\n *runas: (\S+)$", spec, re.M)
    files = re.search(r"^ *- source: /\n *destination: (\S+)$", spec, re.M)
    expect("appspec.yml has a hook and files", runs and files, spec)
    location, timeout, user = runs.groups()
    archive = "/opt/codedeploy-agent/deployment-root/group/d-TEST/deployment-archive"
    put(node, f"{archive}/{location}", example(f"codedeploy/{location}"))
    put(node, f"{files[1]}/install.sh", release)
    on(node, "chmod", "0755", f"{archive}/{location}", f"{files[1]}/install.sh")
    event = ("env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LIFECYCLE_EVENT=AfterInstall",
             "DEPLOYMENT_ID=d-TEST", "APPLICATION_NAME=es-client", "DEPLOYMENT_GROUP_NAME=group")
    return on(node, "timeout", timeout, "runuser", "-u", user, "--", *event, f"{archive}/{location}", check=False)


def the_codedeploy_hook_ends_the_deployment_with_the_verdict():
    node = NODES[1]
    done = hook(node, "#!/bin/sh\nset -e\ntouch /srv/released\n")
    expect("the deployment succeeds", done.returncode == 0, (done.returncode, done.stdout + done.stderr))
    expect("the release is installed", there(node, "/srv/released"))
    failed = hook(node, "#!/bin/sh\nexit 3\n")
    expect("the deployment fails", failed.returncode == 101, (failed.returncode, failed.stdout + failed.stderr))
    until("the latch", 60, lambda: latches(NODES[0]))
    settled(latched=True)
    refused = hook(NODES[2], "#!/bin/sh\ntouch /srv/released\n")
    expect("and no other node is touched", refused.returncode == 100 and not there(NODES[2], "/srv/released"), refused.stdout)
    clear_latches()


# --- cron ---


def the_cron_line_patches_all_three_one_by_one():
    """By cron itself, on all three in the same minute: the next but one, if this one is nearly over."""
    unpatched()
    line = next(line for line in example("backstop.cron").splitlines() if line.startswith("0 2 * * * root backstop run "))
    command = re.sub(r'--only-if "[^"]*" -- .*$', f'--only-if "{NEEDED}" -- {PATCH}', line.removeprefix("0 2 * * * "))
    expect("the line has a question and a command", command != line.removeprefix("0 2 * * * "), line)
    at = on(NODES[0], "date", "-d", "+64 seconds", "+%-M %-H").stdout.strip()
    text = example("backstop.cron").replace(line, f"{at} * * * {command} >> /srv/cron.log 2>&1")
    before = state()["writes"]
    for node in NODES:
        put(node, "/etc/cron.d/backstop-patch", text)
        on(node, "systemctl", "start", "cron")
    for node in NODES:
        until(f"{node} has patched itself", 200, lambda: there(node, "/var/lib/patched"))
    for node in NODES:
        on(node, "rm", "/etc/cron.d/backstop-patch")
    settled()
    for node in NODES:
        log = on(node, "cat", "/srv/cron.log").stdout
        expect(f"{node} had its own cycle", "DONE" in log, log)
    expect("each was out once", state()["writes"] == before + 2 * len(NODES), (before, state()["writes"]))
