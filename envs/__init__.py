"""Environments in which the policies learn. Importing this room registers them with Gymnasium."""

import gymnasium

# Wall-clock time is part of the reward, so the same seed and actions never give the same returns.
for _name in ("Depth", "Size"):
    gymnasium.register(id=f"draftpace/{_name}-v0", entry_point=f"envs.live:{_name}Env", nondeterministic=True)
gymnasium.register(id="draftpace/Cycle-v0", entry_point="envs.cycle:CycleEnv", nondeterministic=True)
