"""Reads compose.yaml as its own tool would (variables, merged keys) and says how each service is started."""
import re


def load(text, variables):
    """The file's services; a variable that must be set and is not is a KeyError with its sentence."""
    import yaml

    def value(found):
        name, kind, rest = found[1], found[2], found[3]
        if name in variables:
            return variables[name]
        if kind == ":-":
            return rest
        raise KeyError(f"{name}: {rest}")

    return yaml.safe_load(re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", value, "\n".join(line for line in text.splitlines() if not line.startswith("#"))))


def volumes(service, folders):
    """As pod.py wants them; `folders`: named volume -> folder here."""
    for line in service.get("volumes", []):
        source, target, *mode = line.split(":")
        yield {"path": target, "bind": str(folders.get(source, source)), "rw": mode != ["ro"]}
    for line in service.get("tmpfs", []):
        yield {"path": line.split(":")[0], "empty": True}


def specification(service, config, folders, hosts):
    """A pod.py specification without its root and image; `config`: the image's."""
    env = dict(e.split("=", 1) for e in config["Env"]) | {k: str(v) for k, v in service.get("environment", {}).items()}
    return {"volumes": list(volumes(service, folders)), "hosts": hosts, "user": int(config["User"].split(":")[0]), "env": env,
            "argv": config["Entrypoint"] + service["command"]}
