"""Build an image on this machine."""

from ...engines.choose import images_of
from ...errors import CommandFailed, UsageError
from ...hosts import Host
from ...ssh.host_connection import connected
from ...terminal.console import Console
from .recipe import Recipe


def build_image(recipe: Recipe, console: Console, *, rebuild: bool = False) -> str:
    """Build the recipe's image, and return its name.

    If the tag is computed from the content, an image that exists is not built again unless
    `rebuild` is set.
    """
    with connected([Host(host="local")]) as [local]:
        store = images_of(local)
        base = store.inspect(recipe.base)
        if base is None:
            console.say(f"pulling the base image {recipe.base}; this may take minutes")
            try:
                base = store.pull(recipe.base)
            except CommandFailed as error:
                what = f"cannot pull the base image {recipe.base}: {error.what}"
                raise UsageError(what, "pass another one with --base") from None
        name = recipe.tag(base.id)
        if not recipe.has_tag and not rebuild and store.inspect(name):
            console.say(f"{name} is up to date")
            return name
        console.say(f"building {name} from {recipe.base}")
        for line in store.build(recipe.context(), name):
            console.say(line)
    return name
