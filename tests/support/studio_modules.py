"""What nearly every `studio` process imports; see `forked_studio`."""

import gc
from importlib import import_module

# By name: as import statements they would be superfluous to ruff, which takes such ones away.
for name in (
    "engines.policies.rehearsal.solve",
    "engines.policies.rehearsal.reflect",
    "engines.policies.rehearsal.reply",
    "engines.policies.rehearsal.server",
    "httpx2",
    "studio.cli",
    "studio.commands.review",
    "studio.estimate.cost",
    "studio.run.assemble",
    "studio.run.headless",
    "studio.tui.app",
    "studio.serving.review_mcp",
):
    import_module(name)

gc.freeze()  # what is shared by all that are forked stays so
