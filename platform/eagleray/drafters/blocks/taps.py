"""Which target layers a drafter taps when its settings leave it open."""


def default_layers(num_layers: int) -> tuple[int, ...]:
    """An early, a middle and a late layer: the outputs (0-based) that published EAGLE-3 drafters fuse."""
    wanted = (1, num_layers // 2 - 1, num_layers - 4)
    return tuple(sorted({min(max(layer, 0), num_layers - 1) for layer in wanted}))
