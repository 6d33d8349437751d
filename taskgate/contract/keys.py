"""Every Redis key. Each starts with its partition's hash tag, so that one script touches one Cluster slot.

docs/architecture.md lists type, content and life time of each. The scripts build the same names from the
prefix (`scripts/prelude/`); tests/contract/test_keys.py holds the two together.
"""


def prefix(partition: int) -> str:
    return f"tg:{{{partition}}}:"


def task(partition: int, task_id: str) -> str:
    return f"{prefix(partition)}task:{task_id}"


def events(partition: int, task_id: str) -> str:
    return f"{task(partition, task_id)}:events"


def logs(partition: int, task_id: str) -> str:
    return f"{task(partition, task_id)}:logs"


def attempts(partition: int, task_id: str) -> str:
    """Its unsuccessful attempts before the last one."""
    return f"{task(partition, task_id)}:attempts"


def letters(partition: int, tenant: str) -> str:
    """A tenant's dead letters, by their end."""
    return f"{prefix(partition)}letters:{tenant}"


def alive(partition: int, task_id: str) -> str:
    return f"{task(partition, task_id)}:alive"


def wake(partition: int, queue: str, task_type: str) -> str:
    return f"{prefix(partition)}wake:{queue}:{task_type}"


def nudge(partition: int, worker_id: str) -> str:
    """List by which a supervisor ends its own blocking pop early."""
    return f"{prefix(partition)}nudge:{worker_id}"


def beats(partition: int) -> str:
    return f"{prefix(partition)}beats"


def worker(partition: int, worker_id: str) -> str:
    return f"{prefix(partition)}worker:{worker_id}"


def types(partition: int) -> str:
    return f"{prefix(partition)}types"


def usage(partition: int) -> str:
    return f"{prefix(partition)}usage"


def changes(partition: int, task_id: str) -> str:
    """Pub/sub channel: a wake-up for whoever watches this task. The message is its version."""
    return f"{prefix(partition)}changes:{task_id}"


def inbox(partition: int, worker_id: str) -> str:
    """Pub/sub channel of one supervisor: `cancel <task id>`, `stack <task id> <request> <channel for the answer>`."""
    return f"{prefix(partition)}inbox:{worker_id}"


def deletions(partition: int) -> str:
    """Pub/sub channel of all gateways: the id of a task that was deleted, which none should show from memory."""
    return f"{prefix(partition)}deletions"


def access(partition: int) -> str:
    """Pub/sub channel of all gateways: the id of an API key that was revoked, or changed."""
    return f"{prefix(partition)}access"


def gateway(partition: int, gateway_id: str) -> str:
    """Pub/sub channel of one gateway process: `<request> <JSON>`, a supervisor's answer."""
    return f"{prefix(partition)}gateway:{gateway_id}"


def notices(partition: int) -> str:
    """Pub/sub channel of all supervisors: `due <Unix ms>` (a new earliest time), `look` (a task seems lost), `beat
    <partition> <worker> <counter>:<lease_ms>` (that one lives).
    """
    return f"{prefix(partition)}notices"
