"""Every derivative that the core declares is right, to second order: each row is a call, checked by differences; together the rows reach
every node that the registry knows, so that an op without a row is an error.
"""

from __future__ import annotations

import math

import pytest
import stowgrad as torch
import stowgrad.nn.functional as F
from stowgrad.autograd import gradcheck, gradgradcheck

f64 = torch.float64


def numbers(*shape, low=-1.5, high=1.5, phase=0.0):
    """Distinct numbers without a pattern."""
    n = 1
    for s in shape:
        n *= s
    values = [low + (high - low) * ((math.sin(12.9898 * (i + 1 + 100 * phase) + 78.233) * 43758.5453) % 1.0) for i in range(n)]
    return torch.tensor(values, dtype=f64).reshape(shape)


SAMPLES = {
    "x": lambda: numbers(3, 4),
    "y": lambda: numbers(3, 4, phase=0.31),
    "z": lambda: numbers(3, 4, phase=0.77),
    "p": lambda: numbers(3, 4, low=0.3, high=2.0),  # positive
    "q": lambda: numbers(3, 4, low=0.4, high=2.2, phase=0.2),
    "u": lambda: numbers(3, 4, low=0.1, high=0.9),  # inside (0, 1)
    "b": lambda: numbers(3, 4, low=1.2, high=2.5),  # above 1
    "v": lambda: numbers(4, phase=0.1),
    "w": lambda: numbers(3, phase=0.5),
    "s": lambda: numbers(1).reshape(()),
    "m": lambda: numbers(3, 3) + 2 * torch.eye(3, dtype=f64),
    "n": lambda: numbers(4, 2),
    "h": lambda: numbers(3, 3, phase=0.6) + torch.diag(torch.tensor([1.0, 3.0, 6.0], dtype=f64)),
    "a": lambda: numbers(2, 3, 4),
    "c": lambda: numbers(2, 4, 3, phase=0.4),
    "d": lambda: numbers(2, 3, 3, phase=0.2),
    "i1": lambda: numbers(2, 3, 6),  # images: batch, channels, length
    "i2": lambda: numbers(1, 2, 5, 5),
    "i3": lambda: numbers(1, 1, 4, 4, 4),
    "k1": lambda: numbers(3, 3, 2, phase=0.3),
    "k2": lambda: numbers(2, 2, 2, 2, phase=0.3),
    "k3": lambda: numbers(1, 1, 2, 2, 2, phase=0.3),
    "e": lambda: numbers(2, phase=0.9),
    "g": lambda: numbers(3, low=0.5, high=1.5),
}
INDEX = {
    "rows": torch.tensor([0, 2]),
    "at": torch.tensor([[0, 1, 2, 0], [2, 0, 1, 1]]),
    "cols": torch.tensor([[0], [3], [1]]),
    "flat": torch.tensor([1, 5, 7]),
    "mask": torch.tensor([[True, False, True, True], [False, True, False, True], [True, True, False, False]]),
    "labels": torch.tensor([1, 0, 3]),
    "words": torch.tensor([[0, 2], [1, 1]]),
    "signs": torch.tensor([[1.0, -1.0, 1.0, 1.0], [-1.0, 1.0, -1.0, 1.0], [1.0, 1.0, -1.0, -1.0]], dtype=f64),
}
ROWS = """
x.neg()  x.abs()  x.sign()  x.sgn()  x.exp()  x.exp2()  x.expm1()  p.log()  p.log2()  p.log10()  p.log1p()  p.sqrt()  p.rsqrt()  p.reciprocal()  x.sin()  x.cos()  x.tan()
u.asin()  u.acos()  x.atan()  x.sinh()  x.cosh()  x.tanh()  x.asinh()  b.acosh()  u.atanh()  x.sigmoid()  x.relu()  x.erf()  x.erfc()  u.erfinv()  p.lgamma()
p.digamma()  p.polygamma(1)  p.polygamma(2)  x.floor()  x.ceil()  x.trunc()  x.round()  x.frac()  x.deg2rad()  x.rad2deg()  x.sinc()  x.nan_to_num()  u.logit()
u.logit(0.05)  x.square()  x.clone()  x.positive()
x+y  x+2  torch.add(x,y,alpha=3)  x-y  torch.rsub(x,2)  torch.rsub(x,y,alpha=2)  x*y  x*2.5  x/p  2/p  torch.div(x,p,rounding_mode=None)  torch.div(x,p,rounding_mode='floor')
torch.div(x,p,rounding_mode='trunc')  torch.remainder(x,p)  torch.fmod(x,p)  torch.remainder(x,2)  torch.fmod(x,2)  x**3  p**0.5  x**0  p**y  2**x  torch.maximum(x,y)  torch.minimum(x,y)  torch.fmax(x,y)  torch.fmin(x,y)
torch.atan2(x,y)  torch.hypot(x,y)  torch.copysign(x,y)  torch.logaddexp(x,y)  torch.logaddexp2(x,y)  torch.xlogy(x,p)  torch.special.xlog1py(x,p)  torch.lerp(x,y,0.3)  torch.lerp(x,y,u)
torch.addcmul(x,y,z,value=2)  torch.addcdiv(x,y,p,value=2)  x.clamp(-0.5,0.5)  x.clamp(y-1,y+0.4)  torch.clamp(x,min=y)  x.clamp_min(0.1)  x.clamp_max(0.1)  torch.where(mask,x,y)
x.masked_fill(mask,0.5)  x.masked_fill(mask,s)  x.fill(0.5)  x.fill(s)  x.clone().fill_(s)  x.clone().zero_()*x  torch.special.entr(p)  torch.special.ndtri(u)
x.sum()  x.sum(0)  x.mean()  x.mean(1)  x.nansum()  x.nanmean(0)  x.prod()  x.prod(1)  x.amax(0)  x.amin(1)  x.aminmax()  x.max()  x.min()  x.median()  x.nanmedian()  x.max(0)[0]
x.min(1)[0]  x.median(0)[0]  x.nanmedian(0)[0]  x.mode(0)[0]  x.kthvalue(2)[0]  x.logsumexp(0)  x.var()  x.var(0)  x.std()  x.std(1)  torch.var_mean(x,1)  torch.std_mean(x,0)  m.trace()
x.norm()  torch.linalg.vector_norm(x,3,1)  torch.linalg.vector_norm(x,1.5)  torch.linalg.vector_norm(x,float('inf'))  x.dist(y)  x.dist(y,1)  x.renorm(2,0,1.0)  x.cumsum(0)  x.cumprod(1)
x.logcumsumexp(1)  x.cummax(1)[0]  x.cummin(0)[0]  x.softmax(1)  x.log_softmax(0)  x.sort()[0]  x.sort(stable=True)[0]  x.topk(2)[0]  x.msort()  x.diff()  x.quantile(0.4,1)
x.nanquantile(0.4,1)
x.mm(n)  a.bmm(c)  x.mv(v)  torch.dot(v,v+1)  torch.vdot(v,v*2)  torch.addmm(torch.ones(3,2,dtype=f64),x,n,beta=2,alpha=3)  torch.addmv(w,x,v)  torch.addr(x,w,v)  torch.addbmm(m,a,c)
torch.baddbmm(d,a,c)  torch.outer(w,v)  x@v  a@c  F.linear(x,n.t())  F.linear(x,n.t(),e)  torch.einsum('ij,kj->ik',x,y)  torch.cdist(x,y)  torch.cdist(x,y,1.0)  torch.cdist(x,y,3.0)
torch.cdist(x,y,float('inf'))  F.pdist(x)  torch.kron(w,v)  torch.inner(x,y)  F.bilinear(x,y,numbers(2,4,4))  torch.matrix_exp(m)
torch.linalg.inv(m)  torch.linalg.det(m)  m.slogdet()[1]  m.det()  torch.linalg.solve(m,x)  torch.linalg.solve(m,w)  torch.linalg.solve(m,x.t(),left=False)  m.inverse()  m.matrix_power(3)
m.matrix_power(-2)  torch.linalg.solve_triangular(m.tril(),x,upper=False)  torch.linalg.solve_triangular(m.triu(),x,upper=True)
torch.linalg.solve_triangular(m.triu(),x,upper=True,unitriangular=True)  torch.linalg.solve_triangular(m.triu(),x.t(),upper=True,left=False)
torch.linalg.cholesky(h@h.t())  torch.linalg.cholesky(h@h.t(),upper=True)  torch.linalg.qr(m)  torch.linalg.qr(x.t())  torch.linalg.qr(x)  torch.linalg.eigvalsh(h+h.t())
torch.linalg.eigh(h+h.t())[1].square()  torch.linalg.svdvals(x)  torch.linalg.svd(x,full_matrices=False)[0].square()  torch.linalg.svd(x,full_matrices=False)[2].square()
torch.linalg.svd(x.t(),full_matrices=False)[0].square()  torch.linalg.pinv(x)  torch.linalg.pinv(x.t())  torch.cross(x,y,dim=0)  torch.linalg.cross(m,h)  torch.linalg.norm(x)
torch.linalg.matrix_norm(x)  torch.linalg.matrix_norm(x,1)  torch.linalg.matrix_norm(x,'nuc')  torch.linalg.matrix_norm(x,2)  torch.linalg.multi_dot([w,x,n])  m.logdet().exp()
x.view(4,3)  x.reshape(-1)  x.t().reshape(-1)  x.t()  x.transpose(0,1)  a.permute(2,0,1)  x.unsqueeze(1)  a[:,:1].squeeze(1)  a[:,:1].squeeze()  a[:,:1].squeeze((1,2))  x.expand(2,3,4)  x.flatten()
x[1]  x[:,1:3]  x[::2]  x[None]  x[...,0]  x[rows]  x[mask]  x.select(0,1)  x.narrow(1,1,2)  x.split(2,1)  x.split([1,3],1)  x.chunk(2,1)  x.unbind(1)  x.unsafe_split(2,1)
x.unsafe_split_with_sizes([1,3],1)  x.unsafe_chunk(2,1)  x.diagonal()  a.diagonal(0,1,2)  x.tril()  x.triu(1)  v.diag()  v.diag_embed()  m.diag()  x.unfold(1,2,1)  x.as_strided((2,2),(4,1),1)
torch.as_strided_scatter(x,n[:2],(2,2),(4,1),1)  x.flip(0)  x.roll(1,0)  x.rot90()  x.repeat(2,1)  x.repeat_interleave(2,0)  x.tile(2)  x.movedim(0,1)  torch.alias(x)
x.contiguous()  x.t().contiguous()  x.to(f64,copy=True)  x.sum_to_size(1,4)  x.view_as(y)  x.unflatten(1,(2,2))  torch.cat([x,y],1)  torch.stack([x,y],1)
torch.block_diag(x,m)  x.clone().copy_(v)  x.clone().copy_(y)  x.select_scatter(v,0,1)  x.slice_scatter(v[None],0,1,2)  x.diagonal_scatter(w)
torch.real(x)  x.ravel()
x.gather(0,at)  x.scatter(0,at,numbers(2,4,phase=0.8))  x.scatter(0,at,0.5)  x.scatter_add(0,at,y[:2])  x.index_select(0,rows)  x.index_add(0,rows,y[:2],alpha=2)  x.index_copy(0,rows,y[:2])
x.index_fill(0,rows,0.5)  x.index_fill(0,rows,s)  x.index_put((rows,),y[:2])  x.index_put((rows,),y[:2],accumulate=True)  x.take(flat)  x.put(flat,w)  x.put(flat,w,True)
x.take_along_dim(cols,1)  x.masked_select(mask)  x.masked_scatter(mask,y)  x.scatter_reduce(0,at,y[:2],'sum')  x.scatter_reduce(0,at,y[:2],'prod')  x.scatter_reduce(0,at,y[:2],'mean')
x.scatter_reduce(0,at,y[:2],'amax')  x.index_reduce(0,rows,y[:2],'prod')  x.index_reduce(0,rows,y[:2],'mean')  x.index_reduce(0,rows,y[:2],'amax')  F.embedding(words,x)
F.embedding_bag(words,x,mode='sum')  F.embedding_bag(words,x,mode='mean')  F.embedding_bag(words,x,mode='max')
F.leaky_relu(x)  F.elu(x)  F.elu(x,1.5)  F.selu(x)  torch.celu(x,1.5)  F.gelu(x)  F.gelu(x,approximate='tanh')  F.silu(x)  F.mish(x)  F.softplus(x,2.0)  F.hardtanh(x)  F.hardsigmoid(x)
F.hardswish(x)  F.softshrink(x,0.3)  F.hardshrink(x,0.3)  F.threshold(x,0.1,0.5)  F.logsigmoid(x)  F.prelu(x,v)  F.prelu(x,s.reshape(1))  F.glu(x)  F.softsign(x)  F.tanhshrink(x)  F.softmin(x,0)
F.relu6(x)  F.rrelu(x,0.2,0.2,training=True)  F.dropout(x,0.0)  F.dropout(x,0.0,training=True)
F.mse_loss(x,y)  F.l1_loss(x,y)  F.smooth_l1_loss(x,y,beta=0.4)  F.huber_loss(x,y,delta=0.4)  F.binary_cross_entropy(u,1-u*0.9)  F.binary_cross_entropy(u,1-u*0.9,weight=signs.abs()*1.5)
F.binary_cross_entropy_with_logits(x,u)  F.binary_cross_entropy_with_logits(x,u,pos_weight=torch.ones(4,dtype=f64)*2)  F.kl_div(x,u)  F.kl_div(x,y,log_target=True)  F.nll_loss(x,labels)
F.nll_loss(x,labels,weight=torch.arange(1.,5.,dtype=f64))  F.cross_entropy(x,labels,label_smoothing=0.1)  F.cross_entropy(x,y.softmax(1))  F.nll_loss(a,torch.tensor([[0,1,2,0],[2,1,0,0]]))  F.poisson_nll_loss(x,u)
F.gaussian_nll_loss(x,y,p)  F.soft_margin_loss(x,signs)  F.hinge_embedding_loss(x,signs)  F.margin_ranking_loss(x,y,signs,margin=0.1)  F.multi_margin_loss(x,labels)
F.multilabel_margin_loss(x,torch.tensor([[1,-1,0,0],[0,2,-1,0],[3,-1,0,0]]))  F.multilabel_soft_margin_loss(x,mask.to(f64))  F.cosine_similarity(x,y)  F.cosine_embedding_loss(x,y,torch.tensor([1,-1,1]))
F.triplet_margin_loss(x,y,z)  F.pairwise_distance(x,y)  F.normalize(x)  F.ctc_loss(x.log_softmax(1)[:,None],torch.tensor([[1,2]]),[3],[2])
F.layer_norm(x,(4,),v,v+1)  F.rms_norm(x,(4,),v)  F.group_norm(i2,2,e,e+1)  F.instance_norm(i1)  F.batch_norm(x,None,None,v,v+1,True)  F.batch_norm(x,torch.zeros(4,dtype=f64),torch.ones(4,dtype=f64)*1.5,v,v+1)
F.local_response_norm(i2,2)
F.conv1d(i1,k1,w,padding=1)  F.conv2d(i2,k2,e,stride=2)  F.conv2d(i2,k2[:,:1],e,groups=2)  F.conv3d(i3,k3)  F.conv_transpose1d(i1,k1)  F.conv_transpose2d(i2,k2,stride=2)  F.conv_transpose3d(i3,k3)
F.conv_tbc(i1,numbers(2,6,2),e)
F.max_pool1d(i1,2)  F.max_pool2d(i2,2)  F.max_pool3d(i3,2)  F.avg_pool1d(i1,2)  F.avg_pool2d(i2,2)  F.avg_pool3d(i3,2)  F.adaptive_avg_pool1d(i1,2)  F.adaptive_avg_pool2d(i2,2)
F.adaptive_avg_pool3d(i3,2)  F.adaptive_max_pool1d(i1,2)  F.adaptive_max_pool2d(i2,2)  F.adaptive_max_pool3d(i3,2)  F.lp_pool2d(i2.abs()+0.1,2,2)  F.max_unpool2d(*F.max_pool2d(i2[...,:4,:4],2,return_indices=True),2)
F.fractional_max_pool2d(i2,2,output_size=2,_random_samples=numbers(1,2,2,low=0.,high=1.))  F.fractional_max_pool3d(i3,2,output_size=2,_random_samples=numbers(1,1,3,low=0.,high=1.))
F.interpolate(i1,4)  F.interpolate(i2,4)  F.interpolate(i3,3)  F.interpolate(i1,4,mode='nearest-exact')  F.interpolate(i2,4,mode='nearest-exact')  F.interpolate(i3,3,mode='nearest-exact')
F.interpolate(i1,4,mode='linear')  F.interpolate(i2,4,mode='bilinear')  F.interpolate(i2,4,mode='bilinear',align_corners=True)  F.interpolate(i3,3,mode='trilinear')  F.interpolate(i2,4,mode='bicubic')
F.pad(x,(1,2))  F.pad(i1,(1,2),mode='reflect')  F.pad(i2,(1,2,1,1),mode='reflect')  F.pad(i3,(1,1,1,1,1,1),mode='reflect')  F.pad(i1,(1,2),mode='replicate')  F.pad(i2,(1,2,1,1),mode='replicate')
F.pad(i3,(1,1,1,1,1,1),mode='replicate')  F.pad(i1,(1,2),mode='circular')  F.unfold(i2,2)  F.fold(F.unfold(i2,2),(5,5),2)  F.pixel_shuffle(numbers(1,4,2,2)*s,2)  F.pixel_unshuffle(i2[...,:4,:4],2)
F.channel_shuffle(i2,2)  F.grid_sample(i2,numbers(1,2,2,2,low=-0.8,high=0.8)*s)  F.grid_sample(i2,numbers(1,2,2,2,low=-0.8,high=0.8)*s,mode='nearest')
F.grid_sample(i2,numbers(1,2,2,2,low=-0.8,high=0.8)*s,mode='bicubic')  F.grid_sample(i3,numbers(1,2,2,2,3,low=-0.8,high=0.8)*s)  F.affine_grid(numbers(1,2,3)*s,(1,1,2,2))
F.scaled_dot_product_attention(a,a+1,a*2)
"""


def rows():
    return [e.strip() for line in ROWS.strip().splitlines() for e in line.split("  ") if e.strip()]


def named(expression):
    """The samples that a row names, in its order."""
    import re

    found = []
    for word in re.findall(r"(?<![\w.'])[a-z]\w*", expression):
        if word in SAMPLES and word not in found and not re.search(rf"\b{word}=", expression):
            found.append(word)
    return found


def call(expression):
    names = named(expression)

    def f(*values):
        scope = {"torch": torch, "F": F, "f64": f64, "numbers": numbers, **INDEX, **dict(zip(names, values, strict=True))}
        out = eval(expression, scope)
        out = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        return tuple(o for o in out if isinstance(o, torch.Tensor) and o.requires_grad)

    return f, tuple(SAMPLES[n]().requires_grad_() for n in names)


def nodes(tensors):
    """The names of all nodes behind tensors."""
    stack, seen = [t.grad_fn for t in tensors if t is not None and t.grad_fn is not None], set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(n for n, _ in node.next_functions if n is not None)
    return {node.name() for node in seen}


def gradients(outputs, inputs):
    """Gradients to be differentiated again, and the weights that they are linear in."""
    ones = [torch.ones_like(o).requires_grad_() for o in outputs]
    found = torch.autograd.grad(outputs, inputs, ones, create_graph=True, allow_unused=True)
    return [g for g in found if g is not None and g.requires_grad], ones


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", rows())
def test_derivatives_to_second_order_are_right(expression):
    f, inputs = call(expression)
    assert f(*inputs), "the row has an output to differentiate"
    assert gradcheck(f, inputs)
    assert gradgradcheck(f, inputs)


# Declared so that a gradient that arrives is an error, or with a derivative that differences do not see.
NOT_CHECKED = {
    **dict.fromkeys(
        [f"{name}Backward{i}" for name, n in {"Bernoulli": 3, "Normal": 4, "Random": 3}.items() for i in range(n)]
        + [f"{name}Backward0" for name in ("Cauchy", "Exponential", "Geometric", "LogNormal", "Poisson", "Uniform")],
        "draws random numbers: its gradient is zeros",
    ),
    "FloorDivideBackward": "has no derivative, and says so",
    "HeavisideBackward": "has no derivative, and says so",
    "ScatterBackward2": "has no derivative, and names the operation that has one",
    "CofactorsBackward": "a singular matrix: its row is test_a_determinant_of_zero_has_a_gradient",
}


@pytest.mark.filterwarnings("ignore")
def test_the_rows_reach_every_node_with_a_derivative():
    reached = set()
    for expression in rows():
        f, inputs = call(expression)
        outputs = f(*inputs)
        reached |= nodes(outputs)
        first, weights = gradients(outputs, inputs)
        reached |= nodes(first)
        if first:
            reached |= nodes(gradients(first, [*inputs, *weights])[0])
    declared = {row["node"] for row in torch._C._registry() if row["differentiable"]}
    assert len(declared) > 250
    assert declared - reached == set(NOT_CHECKED)


@pytest.mark.parametrize(
    "draw", ["bernoulli_(0.5)", "normal_()", "uniform_()", "exponential_()", "cauchy_()", "log_normal_()", "geometric_(0.5)", "random_(5)"]
)
def test_a_draw_has_a_gradient_of_zeros(draw):
    x = numbers(3).requires_grad_()
    y = eval(f"(x * 2).{draw}", {"x": x})
    y.sum().backward()
    assert x.grad.tolist() == [0.0] * 3


def test_a_determinant_of_zero_has_a_gradient():
    a = torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=f64, requires_grad=True)
    assert gradcheck(torch.linalg.det, a)
