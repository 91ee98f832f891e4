"""The models of `torch_models.py`, built with random weights where they run, each when it is its turn."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with its vocabulary of 50257 tokens."""

    def __init__(self, layers=12, width=768, heads=12, tokens=50257, length=1024):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, ids):
        x = self.token(ids) + self.place.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class Vit(nn.Module):
    """A vision transformer with 197 tokens."""

    def __init__(self, layers=12, width=768, heads=12, size=224, patch=16, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.head(self.norm(self.blocks(x))[:, 0])


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        outside = 4 * width
        self.conv1, self.conv3 = nn.Conv2d(inside, width, 1, bias=False), nn.Conv2d(width, outside, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(n) for n in (width, width, outside))
        self.short = nn.Identity()
        if stride > 1 or inside != outside:
            self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.short(x))


class ResNet(nn.Module):
    """ResNet-50, where `blocks` are (3, 4, 6, 3)."""

    def __init__(self, blocks=(3, 4, 6, 3), width=64, classes=1000):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        layers, inside = [], width
        for stage, count in enumerate(blocks):
            for n in range(count):
                layers.append(Bottleneck(inside, width << stage, 2 if n == 0 and stage > 0 else 1))
                inside = 4 * (width << stage)
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inside, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        return self.head(self.layers(x).mean((2, 3)))


class RetinaHead(nn.Module):
    """The two towers of RetinaNet over five levels of an image's features."""

    def __init__(self, width=256, depth=4, anchors=9, classes=91):
        super().__init__()

        def tower(outputs):
            convs = (m for _ in range(depth) for m in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU()))
            return nn.Sequential(*convs, nn.Conv2d(width, outputs, 3, padding=1))

        self.classes, self.boxes = tower(anchors * classes), tower(anchors * 4)

    def forward(self, x):
        levels = [x]
        for _ in range(4):
            levels.append(F.max_pool2d(levels[-1], 2, 2))
        return torch.cat([head(level).flatten(1) for head in (self.classes, self.boxes) for level in levels], 1)


def odd(width=1000, bias=True):
    return nn.Sequential(nn.Linear(width, width + 1, bias), nn.GELU(), nn.Linear(width + 1, width + 3, bias), nn.GELU(), nn.Linear(width + 3, width, bias))


LAST = {"memory_format": torch.channels_last}


def images(n, size, channels=3):
    return torch.randn(n, channels, size, size)


# Name: the model, its input, whether a step trains.
MODELS = {
    "odd": (odd, lambda: torch.randn(4096, 1000), True),
    "vit": (Vit, lambda: images(64, 224), False),
    "resnet": (lambda: ResNet().to(**LAST), lambda: images(64, 224).contiguous(**LAST), False),
    "resnet-train": (lambda: ResNet().to(**LAST), lambda: images(64, 224).contiguous(**LAST), True),
    "retina": (lambda: RetinaHead().to(**LAST), lambda: images(8, 80, 256).contiguous(**LAST), False),
    "retina-train": (lambda: RetinaHead().to(**LAST), lambda: images(8, 80, 256).contiguous(**LAST), True),
    "gpt2": (Gpt2, lambda: torch.randint(50257, (8, 1024)), True),
}
# The same of a few elements.
TINY = {
    "odd": (lambda: odd(20), lambda: torch.randn(6, 20), True),
    "vit": (lambda: Vit(1, 16, 2, 8, 4, 10), lambda: images(2, 8), False),
    "resnet": (lambda: ResNet((1,), 4, 10).to(**LAST), lambda: images(1, 16).contiguous(**LAST), False),
    "resnet-train": (lambda: ResNet((1,), 4, 10).to(**LAST), lambda: images(1, 16).contiguous(**LAST), True),
    "retina": (lambda: RetinaHead(4, 1, 2, 3), lambda: images(1, 16, 4), False),
    "retina-train": (lambda: RetinaHead(4, 1, 2, 3), lambda: images(1, 16, 4), True),
    "gpt2": (lambda: Gpt2(1, 16, 2, 57, 8), lambda: torch.randint(57, (2, 8)), True),
}


def case(name, tiny, device):
    """A model, its input, and whether a step trains. Numbers are bf16; of those `tiny` f32."""
    model, x, trains = (TINY if tiny else MODELS)[name]
    kind = torch.float32 if tiny else torch.bfloat16
    torch.manual_seed(1)
    with torch.device(device):
        model, x = model().to(kind), x()
    return model, x if x.dtype == torch.int64 else x.to(kind), trains
