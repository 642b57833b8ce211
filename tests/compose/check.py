"""The shape of docker-compose.yml, checked where no engine runs. Needs PyYAML; prints what it looked at."""
import re
import sys

import yaml

compose = yaml.safe_load(open("docker-compose.yml"))
services = compose["services"]
problems = []


def expect(holds, what):
    if not holds:
        problems.append(what)


def roles(name):
    return services[name]["environment"]["node.roles"]


data = [s for s in services if services[s].get("image", "").startswith("elasticsearch:") and "data" in str(roles(s))]
clients = [s for s in services if services[s].get("image", "").startswith("elasticsearch:") and roles(s) == ""]
agents = [s for s in services if s.startswith("agent-")]
expect(len(data) == 1, f"one data node, found {data}")
expect(len(clients) == 3, f"three coordinating-only nodes (node.roles set and empty), found {clients}")
expect(len(agents) == 3, f"three agents, found {agents}")
expect(any(s.get("image", "").startswith("motoserver/moto:") for s in services.values()), "moto as ELBv2")
for name, service in services.items():
    image = service.get("image", "")
    pinned = re.fullmatch(r"[a-z0-9._/-]+:(\d[\w.-]*|compose)", image)
    expect(pinned, f"{name}: the version of its image is pinned, found {image!r}")
    for needed in service.get("depends_on") or []:
        expect(needed in services, f"{name} depends on {needed}, which is no service")
    mode = service.get("network_mode", "")
    expect(not mode or mode.removeprefix("service:") in services, f"{name}: {mode} is no service")
    for volume in service.get("volumes") or []:
        source = volume.split(":")[0]
        expect(source.startswith(".") or source in compose["volumes"], f"{name}: volume {source} is not declared")
identities = {services[a]["environment"]["INSTANCE"] for a in agents}
expect(len(identities) == 3, "each agent has an identity of its own")
for agent in agents:
    client = services[agent]["network_mode"].removeprefix("service:")
    expect(client in clients, f"{agent} shares the network of a client node")
    expect(services[agent]["environment"]["NODE"] == client, f"{agent} is named after its node")
    address = services[client]["networks"]["fleet"]["ipv4_address"]
    expect(services[agent]["environment"]["ADDRESS"] == address, f"{agent} registers the address of its node")
shared = [a for a in agents if any(v.startswith("shared:") for v in services[a]["volumes"])]
expect(len(shared) == 3, "the record is on a volume that all agents share")
for problem in problems:
    print("docker-compose.yml:", problem, file=sys.stderr)
print(f"compose: {len(services)} services, {len(problems)} problems")
sys.exit(1 if problems else 0)
