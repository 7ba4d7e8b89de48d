"""A λ that rises over the first steps."""


def ramp(step: int, steps: int, delay: int = 0) -> float:
    """The factor of a λ that is 0 up to step ``delay``, rises linearly over ``steps`` steps, and then stays at 1.

    Use it in any loop: ``optimizer.scale_penalty(ramp(n, 1000))`` or ``loss + ramp(n, 1000) * penalty(model)``.
    ``steps=0`` gives a constant λ.
    """
    return 1.0 if steps <= 0 and step >= delay else min(1.0, max(0.0, (step - delay) / max(1, steps)))
