from pathlib import Path

import typer

from ..errors import UsageError
from . import options
from .options import flag, option


def image(
    action: str = typer.Argument(help="Build an image; there is no other action.", metavar="build"),
    source: Path = typer.Argument(
        Path(),
        help="A requirements.txt, pyproject.toml or conda environment.yml, or a folder that has one.",
        metavar="[FILE]",
        show_default=False,
    ),
    base: str | None = option(
        "--base", "IMAGE", "The image to start from (default: PyTorch's; for conda, Miniforge's)."
    ),
    name: str | None = option(
        "--name", "NAME", "The name of the image (default: ddpctl-FOLDER, tagged by content)."
    ),
    trainer: bool = flag("--trainer", "Build ddpctl-trainer:latest, for `-m trainer`."),
    rebuild: bool = flag("--rebuild", "Build the image even if one with this content exists."),
    dry_run: bool = flag("--dry-run", "Print the Dockerfile and build nothing."),
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> None:
    """Build an image with your project's packages, and print its name.

    Use the name as job.image in the hosts file.

    Building needs Docker or Podman on this machine; `push` and `launch` send the image to the hosts.
    The base image's torch is kept as it is. Your code is not part of the image: set
    job.workdir to send it to the hosts.

    \b
    ddpctl image build
    ddpctl image build environment.yml --base condaforge/miniforge3
    ddpctl image build --base nvcr.io/nvidia/pytorch:25.09-py3
    ddpctl image build --dry-run > Dockerfile
    """
    from ..push.image.build_image import build_image
    from ..push.image.recipe import find_source, recipe_of, trainer_recipe

    console = options.console(quiet, verbose)
    if action != "build":
        raise UsageError(f"image {action}: not an action", "use `ddpctl image build`")
    recipe = trainer_recipe(base) if trainer else recipe_of(find_source(source), base, name)
    text = recipe.dockerfile.rstrip() if dry_run else build_image(recipe, console, rebuild=rebuild)
    console.print(text)
