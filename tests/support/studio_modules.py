"""What nearly every `studio` process imports; see `forked_studio`."""

import gc

gc.freeze()  # what is shared by all that are forked stays so
