"""Which approximation to trust.

Six approximations are compared with exact enumeration on small random machines. The panels show the errors of ln Z and
of the means against the strength of the couplings. All approximations are accurate for weak couplings. TAP takes
little more time than naive mean field and is far more accurate. Third-order TAP and adaptive TAP are more accurate
than TAP.

Run time: 21 s.
"""

from statistics import median

import matplotlib.pyplot as plt
import torch

from tapmachine import Spin, pairwise
from tapmachine.analysis import compare_schemes

scales = [0.2, 0.35, 0.5, 0.7, 1.0]
errors = {}
for scale in scales:
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        upper = torch.triu(torch.randn(10, 10, generator=generator, dtype=torch.float64), 1)
        field = 0.3 * torch.randn(10, generator=generator, dtype=torch.float64)
        machine = pairwise(Spin(10, field=field), scale / 10**0.5 * (upper + upper.T))
        for row in compare_schemes(machine).rows:
            errors.setdefault(row.scheme, {}).setdefault(scale, []).append((row.log_partition_error, row.mean_error))

figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for k, (ax, title) in enumerate(zip(axes, ("error of ln Z, nats", "error of the means"), strict=True)):
    for name, found in errors.items():
        ax.loglog(scales, [median(abs(pair[k]) for pair in found[scale]) for scale in scales], "o-", label=name)
    ax.set(xlabel="strength of the couplings", title=title)
    ax.set_xticks(scales, map(str, scales), minor=False)
    ax.minorticks_off()
axes[0].legend(fontsize=8)
figure.savefig("approximations.png", dpi=110)
