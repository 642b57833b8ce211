"""Ansible's stdout as one JSON object: what each task came to on each host, and the recap."""
import json

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = "name: report\ntype: stdout\nshort_description: one JSON object\ndescription: one JSON object\n"


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "report"

    def __init__(self):
        super().__init__()
        self.tasks = {}

    def note(self, result, **_):
        self.tasks.setdefault(result._task.get_name(), {})[result._host.get_name()] = result._result

    v2_runner_on_ok = v2_runner_on_failed = v2_runner_on_unreachable = v2_runner_on_skipped = note

    def v2_playbook_on_stats(self, stats):
        recap = {host: stats.summarize(host) for host in stats.processed}
        print(json.dumps({"stats": recap, "tasks": self.tasks}, default=str))
