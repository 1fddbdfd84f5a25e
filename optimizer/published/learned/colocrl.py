"""Engine `colocrl`: a sequence-to-sequence policy that places co-location groups, by REINFORCE.

Mirhoseini, Pham, Le, Steiner, Larsen, Zhou, Kumar, Norouzi, Bengio, Dean: "Device placement
optimization with reinforcement learning" (ICML 2017); the "RNN-based approach" of HSDAG's table 2.

Known from the papers that compare with it: an attentional sequence-to-sequence model with LSTM and
content-based attention, trained by REINFORCE (HSDAG, section 3.3 and appendix B), with a step's
running time as the reward (Celeritas, section 2); co-location before (thesis, 2.3 and 5.3), which
is reduction `colocrl`.

Publicly known of the paper itself: an operator is described by its type, its output shapes and a
vector of the operators that it is linked with; the decoder takes as many steps as there are groups,
and reads the device of the step before; the reward is minus the square root of the running time;
the baseline of REINFORCE is a moving average.

Chosen here: 64 hidden numbers; a decoder also reads what the encoder said of the group that it
places, which its attention would first have to find; attention is a softmax of products; ten
placements are drawn for an update; learning rate, baseline and the norm of gradients
(`settings.py`). The answer is the best placement that was tried.
"""

from __future__ import annotations

from placewire.optimizer.published.learned.settings import RecurrentSettings

ENGINE = "colocrl"
SETTINGS = RecurrentSettings()
