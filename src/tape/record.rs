//! `record`: the one place where an op meets the tape. It lends the inputs' arrays to the kernel, packs what the formulas will need,
//! makes the node, and does the three ways of giving a result: a new tensor, in place, or into the user's `out=`.
//!
//! Not generic: everything that depends on the op arrives behind a reference, so that an op costs little code. Order matters: inputs are
//! packed before the kernel runs (a recomputation may stop there, and an in-place op packs a copy of what it overwrites), watchers hear
//! of a write before it, outputs are packed after.
use super::dispatch::{self, Wanted};
use super::hooks::Line;
use super::mode::{self, Hand, Now};
use super::node::{Backward, Edge, Info, Input, Inputs, Meta, Node, Source};
use super::saved::{NO_INPUT, Origin, Pack, SlotName, Slots, Value, here, save};
use super::tensor::{Tensor, ViewKind};
use crate::alloc::Own;
use crate::array::Array;
use crate::error::{Error, Result, bail};
use crate::kernels::{Out, pointwise};
use crate::layout::{Geometry, is_dense};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Where the result goes.
#[derive(Clone, Copy)]
pub enum How<'a> {
    Fresh,
    /// Into the first input.
    InPlace,
    /// Into the user's tensor.
    Into(&'a Tensor),
}
/// What history needs of the view ops, which live above the tape.
pub trait Views: Sync {
    /// The edge of a view (`as_strided`) of something whose gradient goes along `edge`.
    fn strided(&self, edge: Edge, base: &Geometry, view: &Geometry, like: &Meta) -> Result<Edge>;
    /// The node of a base that was written through a view by the operation `inner`.
    fn copy_slices(&self, edge: Edge, base: &Array, view: &Geometry, inner: Arc<Node>) -> Arc<Node>;
}
/// The inputs' arrays; an optional input that is absent is None.
pub type Arrays<'a> = &'a [Option<&'a Array>];
pub type Forward<'a> = &'a dyn Fn(Arrays<'_>, Out<'_>) -> Result<Array>;
pub type Forwards<'a> = &'a dyn Fn(Arrays<'_>) -> Result<SmallVec<[Array; 4]>>;
pub type MakeOp<'a> = &'a dyn Fn() -> Box<dyn Backward>;
pub type Operands<'a> = &'a [Option<&'a Tensor>];
/// Who wants to know what recorded ops read (an open checkpoint frame).
pub trait Reads {
    /// Is the array one of which it wants to know? Only looks.
    fn wants(&self, a: &Array) -> bool;
    fn read(&self, op: &'static str, input: &'static str, a: &Array);
}
/// Tells the open frames what a recorded op reads: not the target of an in-place op, not declared state, not numbers.
pub(super) fn note_reads(info: &'static Info, arrays: Arrays<'_>, target: Option<usize>) {
    let read = |i: usize, a: &Array| !a.number && info.state >> i.min(31) & 1 == 0 && target != Some(i);
    let wanted = mode::wanted_by_readers(arrays, read);
    if wanted == 0 {
        return;
    }
    for (i, a) in arrays.iter().enumerate() {
        if let Some(a) = a
            && wanted >> i.min(63) & 1 != 0
            && read(i, a)
        {
            mode::tell_readers(a, |r| r.read(info.op, info.inputs.get(i).copied().unwrap_or("tensors"), a));
        }
    }
}
thread_local! {
    static TRACED: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}
/// While a custom function computes: what it derives from these inputs is marked, so that a derivative through a value that is neither
/// input nor output is an error rather than zero. Put back on every way out.
pub struct Tracing(Vec<usize>);
impl Tracing {
    /// `inputs`: tensors by address, alive for as long as this.
    pub fn start(inputs: Vec<usize>) -> Tracing {
        mode::set_tracing(!inputs.is_empty());
        Tracing(TRACED.with(|t| t.replace(inputs)))
    }
}
/// Does a custom function compute on this thread?
pub fn tracing() -> bool {
    mode::now().tracing()
}
impl Drop for Tracing {
    fn drop(&mut self) {
        mode::set_tracing(!self.0.is_empty());
        TRACED.with(|t| t.replace(std::mem::take(&mut self.0)));
    }
}
#[cold]
fn trace(info: &'static Info, inputs: Operands<'_>, out: &Tensor) {
    let derives = TRACED.with(|traced| {
        let traced = traced.borrow();
        inputs.iter().enumerate().any(|(i, t)| {
            t.is_some_and(|t| t.is_traced() || traced.contains(&t.id())) && (info.every || info.uses.inputs >> i.min(15) & 1 != 0)
        })
    });
    if derives && out.dtype().is_float() {
        out.set_traced();
    }
}
pub(super) type Refs<'a> = SmallVec<[Option<&'a Array>; 4]>;
/// The inputs' arrays, cloned out of their tensors.
pub(super) struct Lent(SmallVec<[Option<Array>; 3]>);
impl Lent {
    #[inline]
    pub(super) fn of(inputs: Operands<'_>) -> Lent {
        Lent(inputs.iter().map(|t| t.map(Tensor::array)).collect())
    }
    #[inline]
    pub(super) fn refs(&self) -> Refs<'_> {
        self.0.iter().map(Option::as_ref).collect()
    }
}
/// Lends the inputs' arrays to `f`. Where they are free they are lent under their locks, which spares the clones: `f` may then run
/// kernels and keep arrays, but must not touch the tensors' arrays, run user code, or drop a tensor. A lock that is taken (another
/// thread's) makes it clone, so two threads never wait for each other.
#[inline]
fn lend<R>(inputs: Operands<'_>, mut f: impl FnMut(Arrays<'_>) -> R) -> R {
    match *inputs {
        [Some(a)] => {
            if let Some(a) = a.try_lend() {
                return f(&[Some(&a)]);
            }
        }
        [Some(a), Some(b)] if a.ptr_eq(b) => {
            if let Some(a) = a.try_lend() {
                return f(&[Some(&a), Some(&a)]);
            }
        }
        [Some(a), Some(b)] => {
            if let Some(a) = a.try_lend()
                && let Some(b) = b.try_lend()
            {
                return f(&[Some(&a), Some(&b)]);
            }
        }
        _ => {}
    }
    f(&Lent::of(inputs).refs())
}

/// As `lend`, but clones: user code may run between the steps of `f`.
#[inline(always)]
fn with_clones<R>(inputs: Operands<'_>, f: impl Fn(Arrays<'_>) -> R) -> R {
    match *inputs {
        [Some(a)] => f(&[Some(&a.array())]),
        [Some(a), Some(b)] => f(&[Some(&a.array()), Some(&b.array())]),
        _ => f(&Lent::of(inputs).refs()),
    }
}

/// Records an op with one output.
#[inline(never)]
pub fn record(how: How<'_>, info: &'static Info, inputs: Operands<'_>, forward: Forward<'_>, op: MakeOp<'_>) -> Result<Tensor> {
    mode::at_hand(|hand| record_by(hand, how, info, inputs, forward, op))
}
#[inline(always)]
fn record_by(hand: &Hand, how: How<'_>, info: &'static Info, inputs: Operands<'_>, forward: Forward<'_>, op: MakeOp<'_>) -> Result<Tensor> {
    let now = hand.now();
    if now.dispatching()
        && let Some(out) = dispatched(now, how, info, inputs, op)?
    {
        return Ok(out);
    }
    let graded = if now.grad_enabled() { graded(info, inputs) } else { 0 };
    match how {
        How::Fresh if graded == 0 => {
            let out = lend(inputs, |x| match forward(x, Out(None)) {
                Ok(out) => Ok(finish(now, info, inputs, x, out, None)),
                Err(e) => Err(e),
            })?;
            if now.tracing() {
                trace(info, inputs, &out);
            }
            Ok(out)
        }
        How::Fresh => {
            let call = Call { info, inputs, graded, forward, hand };
            if now.watched() || info.state != 0 || mode::anomaly() {
                return watched(&call, op);
            }
            // Made before the arrays are lent: a view may have to find its history, and to look at the running line may run a collection.
            let mut node = Some(begin(info, inputs, graded, line_of(now, info), op)?);
            lend(inputs, |x| recorded(&call, x, &mut node, None))
        }
        How::InPlace => in_place(graded, info, inputs, forward, op),
        How::Into(out) => into(graded != 0, out, info, inputs, forward),
    }
}
#[inline(never)]
fn dispatched(now: Now, how: How<'_>, info: &'static Info, inputs: Operands<'_>, op: MakeOp<'_>) -> Result<Option<Tensor>> {
    let Some(mut out) = dispatch::run(how, info, inputs, op, Wanted::One)? else { return Ok(None) };
    let out = out.swap_remove(0);
    if now.tracing() {
        trace(info, inputs, &out);
    }
    Ok(Some(out))
}
/// An op that is being recorded.
struct Call<'a> {
    info: &'static Info,
    inputs: Operands<'a>,
    graded: u64,
    forward: Forward<'a>,
    hand: &'a Hand,
}
/// Where a policy takes what is saved, or somebody wants to know what is read.
#[inline(never)]
fn watched(call: &Call<'_>, op: MakeOp<'_>) -> Result<Tensor> {
    let &Call { info, inputs, graded, hand, .. } = call;
    let now = hand.now();
    let pack = mode::pack();
    if let Some(guard) = pack.as_ref().and_then(|p| p.adopts())
        && info.state == 0
        && !now.reading()
        && !mode::anomaly()
    {
        let mut node = Some(begin(info, inputs, graded, line_of(now, info), op)?);
        let t = lend(inputs, |x| recorded(call, x, &mut node, None))?;
        if let Some((node, _)) = t.grad_fn() {
            guard.adopt(&node)?;
        }
        return Ok(t);
    }
    with_clones(inputs, |x| {
        if now.reading() {
            note_reads(info, x, None);
        }
        if pack.as_ref().is_some_and(|p| p.ends()) {
            offer_first(info, inputs, x, graded, pack.as_ref())?;
        }
        let node = begin(info, inputs, graded, line_of(now, info), op)?;
        if mode::anomaly() {
            node.keep_stack();
        }
        recorded(call, x, &mut Some(node), pack.as_ref())
    })
}
/// Offers the policy the first input that would be saved, which is expected to end the run by an error; if it does not, it took nothing.
fn offer_first(info: &'static Info, inputs: Operands<'_>, arrays: Arrays<'_>, graded: u64, pack: Option<&Arc<dyn Pack>>) -> Result<()> {
    let Some(&slot) = info.order.first() else { return Ok(()) };
    let (name, Source::Input(i)) = info.saves[slot as usize] else { return Ok(()) };
    if let (Some(Some(t)), Some(Some(a))) = (inputs.get(i as usize), arrays.get(i as usize))
        && info.uses.reads(slot, graded)
        && info.state >> i.min(31) & 1 == 0
        && !a.number
    {
        save(pack, info.op, SlotName::of(name), a, Origin::Input(t), NO_INPUT)?;
    }
    Ok(())
}
/// The node, with the edges along which gradients will go.
#[inline(always)]
fn begin(info: &'static Info, inputs: Operands<'_>, graded: u64, line: Option<Line>, op: MakeOp<'_>) -> Result<Own<Node>> {
    let mut node = Node::blank(op(), inputs.len(), slots(info, inputs.len()), line);
    put_edges(inputs, graded, node.parts().0)?;
    Ok(node)
}
/// Packs inputs, runs the kernel, packs outputs, completes the node. What fails leaves the node to the caller: where the arrays are lent
/// nothing may be dropped.
#[inline(never)]
fn recorded(call: &Call<'_>, x: Arrays<'_>, begun: &mut Option<Own<Node>>, pack: Option<&Arc<dyn Pack>>) -> Result<Tensor> {
    let &Call { info, inputs, graded, forward, hand } = call;
    let node = begun.as_mut().expect("a node is begun once");
    match pack {
        None => keep_inputs(info, inputs, x, graded, node)?,
        Some(_) => {
            let (ins, values) = node.parts();
            fill_inputs(info, inputs, x, graded, pack, None, ins, values)?
        }
    }
    let out = forward(x, Out(None))?;
    if info.state != 0 {
        save_state(info, inputs, x, graded, pack, node.own_slots())?;
    }
    if !out.dtype.is_float() {
        return Ok(finish(hand.now(), info, inputs, x, out, None));
    }
    if info.saves_outputs {
        save_outputs(info, graded, pack, &[&out], node.own_slots())?;
    }
    node.complete(hand.next_seq(), x, &out);
    let Some(node) = begun.take().map(Own::share) else { unreachable!("it was there") };
    if pack.is_none() || !info.saves_outputs {
        return Ok(finish(hand.now(), info, inputs, x, out, Some(node)));
    }
    let t = finish(hand.now(), info, inputs, x, out, Some(node.clone()));
    node.slots().note_output(0, &t);
    Ok(t)
}
/// The inputs, as bits, along which gradients will go; input 63 stands for all beyond it.
pub(super) fn graded(info: &'static Info, inputs: Operands<'_>) -> u64 {
    let mut bits = 0;
    for (i, t) in inputs.iter().enumerate() {
        if let Some(t) = t
            && (info.every || info.uses.inputs >> i.min(15) & 1 != 0)
            && t.requires_grad()
        {
            bits |= 1 << i.min(63);
        }
    }
    bits
}
/// The result as a tensor, with the node that made it. Touches no array of an input: they may be lent.
#[inline(always)]
fn finish(now: Now, info: &'static Info, inputs: Operands<'_>, x: Arrays<'_>, out: Array, node: Option<Arc<Node>>) -> Tensor {
    // below autograd views are no views yet: what intercepted the op makes them so
    if info.view
        && !now.below()
        && let (Some(parent), Some(a)) = (inputs[0], x[0])
        && a.shares(&out)
    {
        return view(now, parent, out, node);
    }
    match node {
        None => Tensor::plain(out, now.inference()),
        Some(node) => Tensor::made_by(node, out),
    }
}
#[inline(never)]
fn view(now: Now, parent: &Tensor, out: Array, node: Option<Arc<Node>>) -> Tensor {
    let kind = if now.grad_enabled() { ViewKind::Plain } else { ViewKind::NoGrad };
    Tensor::view_of(parent, out, node.map_or(Edge::None, |n| Edge::Node(n, 0)), kind)
}
/// The edges along which the gradients will go.
pub(super) fn edges(inputs: Operands<'_>, graded: u64) -> Result<Inputs> {
    let mut ins: Inputs = inputs.iter().map(|_| Input::default()).collect();
    put_edges(inputs, graded, &mut ins)?;
    Ok(ins)
}
#[inline(always)]
fn put_edges(inputs: Operands<'_>, graded: u64, ins: &mut [Input]) -> Result<()> {
    for (i, (input, t)) in ins.iter_mut().zip(inputs).enumerate() {
        if let Some(t) = t
            && graded >> i.min(63) & 1 != 0
            && (i < 63 || t.requires_grad())
        {
            t.put_edge(&mut input.edge)?;
        }
    }
    Ok(())
}
/// How many slots a node has. Of a list's slots there are as many as the list has inputs.
#[inline(always)]
fn slots(info: &'static Info, inputs: usize) -> usize {
    let there = |s: &&(&str, Source)| !matches!(s.1, Source::Input(i) if i as usize >= inputs);
    let all = info.saves.len();
    if all <= inputs { all } else { info.saves.iter().filter(there).count() }
}
/// The inputs that formulas read, kept in their slots: without a policy their order is nobody's affair.
#[inline(always)]
fn keep_inputs(info: &'static Info, inputs: Operands<'_>, arrays: Arrays<'_>, graded: u64, node: &mut Node) -> Result<()> {
    let (ins, values) = node.parts();
    for (slot, value) in values.iter_mut().enumerate() {
        if let Source::Input(i) = info.saves[slot].1
            && let Some(Some(t)) = inputs.get(i as usize)
            && info.uses.reads(slot as u8, graded)
            && info.state >> i.min(31) & 1 == 0
        {
            let array = arrays[i as usize].expect("only inputs that are there are saved");
            if array.number {
                *value = Value::Number((*t).clone());
            } else {
                t.check_savable()?;
                *value = Value::kept(array, t);
                Node::shadow(&ins[i as usize].edge);
            }
        }
    }
    Ok(())
}
/// `overwritten`: the input that the op is about to write in place.
pub(super) fn save_inputs(
    info: &'static Info,
    inputs: Operands<'_>,
    arrays: Arrays<'_>,
    graded: u64,
    pack: Option<&Arc<dyn Pack>>,
    overwritten: Option<usize>,
) -> Result<Slots> {
    let mut values: SmallVec<[Value; 2]> = (0..slots(info, inputs.len())).map(|_| Value::default()).collect();
    fill_inputs(info, inputs, arrays, graded, pack, overwritten, &[], &mut values)?;
    Ok(Slots { values, ..Default::default() })
}
/// `ins`: the inputs of the node whose slots these are, if it is there already.
#[expect(
    clippy::too_many_arguments,
    reason = "what an op is recorded from, and where its values go: a struct of them would be made for each op"
)]
#[inline(always)]
fn fill_inputs(
    info: &'static Info,
    inputs: Operands<'_>,
    arrays: Arrays<'_>,
    graded: u64,
    pack: Option<&Arc<dyn Pack>>,
    overwritten: Option<usize>,
    ins: &[Input],
    values: &mut [Value],
) -> Result<()> {
    let mut copy: Option<Array> = None;
    for &slot in info.order {
        let (name, source) = info.saves[slot as usize];
        let Source::Input(i) = source else { continue };
        if info.state >> i.min(31) & 1 != 0 || !info.uses.reads(slot, graded) {
            continue;
        }
        let Some(Some(t)) = inputs.get(i as usize) else { continue };
        let array = arrays[i as usize].expect("only inputs that are there are saved");
        let value = &mut values[slot as usize];
        if array.number {
            *value = Value::Number((*t).clone());
        } else if overwritten.is_some_and(|o| inputs[o].is_some_and(|x| x.ptr_eq(t))) {
            let before = match &copy {
                Some(c) => c,
                None => copy.insert(pointwise::cast_kept(array, array.dtype)?),
            };
            *value = save(pack, info.op, SlotName::of(name), before, Origin::Overwritten(t), i as u32)?;
        } else {
            let input = if graded >> i.min(63) & 1 == 0 { NO_INPUT } else { i as u32 };
            *value = save(pack, info.op, SlotName::of(name), array, Origin::Input(t), input)?;
            if let (Value::Kept { .. }, Some(input)) = (&*value, ins.get(i as usize)) {
                Node::shadow(&input.edge);
            }
        }
    }
    Ok(())
}
#[inline]
pub(super) fn save_outputs(
    info: &'static Info,
    graded: u64,
    pack: Option<&Arc<dyn Pack>>,
    outs: &[&Array],
    slots: &mut Slots,
) -> Result<()> {
    for &slot in info.order {
        let (name, source) = info.saves[slot as usize];
        if let Source::Output(nr) = source
            && info.uses.reads(slot, graded)
        {
            slots.values[slot as usize] = save(pack, info.op, SlotName::of(name), outs[nr as usize], Origin::Output(nr as u32), 0)?;
        }
    }
    Ok(())
}
/// State is saved as the op left it. A checkpoint frame does not forget it: it lives anyway, and a second run leaves it as it is by then.
pub(super) fn save_state(
    info: &'static Info,
    inputs: Operands<'_>,
    arrays: Arrays<'_>,
    graded: u64,
    pack: Option<&Arc<dyn Pack>>,
    slots: &mut Slots,
) -> Result<()> {
    let pack = pack.filter(|p| !p.recomputes());
    for &slot in info.order {
        let (name, source) = info.saves[slot as usize];
        if let Source::Input(i) = source
            && info.state >> i & 1 == 1
            && let Some(t) = inputs[i as usize]
            && info.uses.reads(slot, graded)
        {
            slots.values[slot as usize] = save(
                pack,
                info.op,
                SlotName::of(name),
                arrays[i as usize].expect("state that is saved is there"),
                Origin::Input(t),
                NO_INPUT,
            )?;
        }
    }
    Ok(())
}
/// Moves what an op declares as its state (running statistics) to a new value.
///
/// A region that is run again has moved it already, and leaves it alone.
pub fn move_state(to: &Array, value: &Array) -> Result<()> {
    if mode::recomputing() {
        return Ok(());
    }
    to.before_write()?;
    pointwise::copy(to, value)?;
    after_write(to);
    Ok(())
}
/// The running line, for a node that may save something.
#[inline]
pub(super) fn line_of(now: Now, info: &'static Info) -> Option<Line> {
    // What a node of a recomputation would complain of, that of the first run has complained of already, and named its line.
    if info.saves.is_empty() || now.recomputing() { None } else { here() }
}
#[inline(always)]
pub(super) fn node(
    op: Box<dyn Backward>,
    mut ins: Inputs,
    line: Option<Line>,
    arrays: Arrays<'_>,
    outputs: &[Meta],
    slots: Slots,
) -> Arc<Node> {
    for (input, a) in ins.iter_mut().zip(arrays) {
        if let Some(a) = a {
            input.looks(a, &outputs[0]);
        }
    }
    Node::new(mode::next_seq(), op, ins, outputs, slots, line)
}

/// Checks and tells: everything that must happen before bytes of `a` change.
pub fn before_write(a: &Array, op: &'static str) -> Result<()> {
    if !a.storage().writable() {
        bail!(Runtime, "{op}(): the memory of this tensor is read-only (it belongs to a read-only numpy array); clone() it before writing");
    }
    a.before_write()
}
/// Notes a write: the version that saved values compare, and the line for their error.
pub fn after_write(a: &Array) {
    a.bump();
    note_write(a);
}
fn note_write(a: &Array) {
    if a.storage().saved_by() > 0
        && let Some(line) = here()
    {
        LAST_WRITE.with(|l| *l.borrow_mut() = Some((Arc::as_ptr(a.storage()) as usize, a.version(), line)));
    }
}
thread_local! { static LAST_WRITE: std::cell::RefCell<Option<(usize, u64, super::Line)>> = const { std::cell::RefCell::new(None) }; }
/// Where the storage of `a` was last written, if that was the last write of this thread to a saved storage.
pub fn last_write(a: &Array) -> Option<String> {
    LAST_WRITE.with(|l| {
        let l = l.borrow();
        l.as_ref()
            .filter(|(at, version, _)| *at == Arc::as_ptr(a.storage()) as usize && *version == a.version())
            .map(|(_, _, line)| line.text())
    })
}
/// Writes `value` into `to` unless the kernel left it there already. Shapes must agree; the dtype must be castable.
fn settle(op: &'static str, to: &Array, value: &Array) -> Result<()> {
    if value.same_elements(to) {
        return Ok(());
    }
    if !value.dtype.can_cast(to.dtype) {
        return Err(Box::new(Error::Cast { op, from: value.dtype, to: to.dtype }));
    }
    if value.shape != to.shape {
        bail!(Runtime, "{op}(): output with shape {:?} doesn't match the broadcast shape {:?}", to.shape, value.shape);
    }
    pointwise::copy(to, value)
}
/// Refuses operands that overlap the target other than by being it: what one element reads another may have written. As torch, it looks at
/// dense layouts alone.
fn check_apart(op: &'static str, to: &Array, operands: Arrays<'_>) -> Result<()> {
    for a in operands.iter().flatten() {
        if !a.shares(to) || a.numel() == 0 || to.numel() == 0 || a.same_elements(to) {
            continue;
        }
        let (x, y) = (a.byte_span(), to.byte_span());
        let dense = is_dense(&a.shape, &a.strides) && is_dense(&to.shape, &to.strides);
        if dense && x.0 < y.1 && y.0 < x.1 && (x != y || a.strides != to.strides) {
            bail!(
                Runtime,
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location ({op}(): shape {:?}, strides {:?} is read, shape {:?}, strides {:?} is written). Please clone() the tensor before performing the operation.",
                a.shape,
                a.strides,
                to.shape,
                to.strides
            );
        }
    }
    Ok(())
}
#[cold]
fn into(graded: bool, out: &Tensor, info: &'static Info, inputs: Operands<'_>, forward: Forward<'_>) -> Result<Tensor> {
    if graded || (mode::grad_enabled() && out.requires_grad()) {
        return Err(Box::new(Error::OutGrad { op: info.op }));
    }
    let lent = Lent::of(inputs);
    let to = out.array();
    check_apart(info.op, &to, &lent.refs())?;
    before_write(&to, info.op)?;
    // A kernel may compute straight into `out` only if nothing it reads lies there.
    let apart = lent.0.iter().flatten().all(|a| !a.shares(&to) || a.same_elements(&to));
    let value = forward(&lent.refs(), Out(apart.then_some(&to)))?;
    if tracing() {
        trace(info, inputs, out);
    }
    filled(info.op, out, &to, &value)
}
/// Leaves `value`, the result of a composition, in the user's `out`.
pub fn into_out(op: &'static str, out: &Tensor, value: &Tensor) -> Result<Tensor> {
    if mode::grad_enabled() && (value.requires_grad() || out.requires_grad()) {
        return Err(Box::new(Error::OutGrad { op }));
    }
    let to = out.array();
    before_write(&to, op)?;
    filled(op, out, &to, &value.array())
}
/// `out`, whose array is `to`, holding `value`; given another shape where it has to be.
fn filled(op: &'static str, out: &Tensor, to: &Array, value: &Array) -> Result<Tensor> {
    if value.same_elements(to) {
        after_write(to);
        return Ok(out.clone());
    }
    if !value.dtype.can_cast(to.dtype) {
        return Err(Box::new(Error::Cast { op, from: value.dtype, to: to.dtype }));
    }
    if value.shape == to.shape {
        pointwise::copy(to, value)?;
        after_write(to);
    } else {
        if to.numel() != 0
            && let Some(h) = super::host()
        {
            h.warn(&format!(
                "{op}(): An output with one or more elements was resized since it had shape {:?}, which does not match the required output shape {:?}. Give out= the right shape, or a tensor without elements",
                to.shape, value.shape
            ))?;
        }
        // In its own storage if there is room, so that other views see what is written.
        let room = to.storage().size() / to.dtype.size();
        let fresh = if to.offset + value.numel() <= room {
            let fresh = to.view(value.shape, value.shape.strides(), to.offset);
            pointwise::copy(&fresh, value)?;
            fresh
        } else {
            pointwise::cast(value, to.dtype)?.counted_as(to)
        };
        after_write(&fresh);
        drop(out.replace_array(fresh));
    }
    Ok(out.clone())
}
fn in_place(graded: u64, info: &'static Info, inputs: Operands<'_>, forward: Forward<'_>, op: MakeOp<'_>) -> Result<Tensor> {
    let target = inputs[0].expect("an in-place op has a target");
    target.check_in_place(info.op, graded != 0)?;
    let lent = Lent::of(inputs);
    let arrays = lent.refs();
    let to = arrays[0].expect("an in-place op has a target");
    check_apart(info.op, to, &arrays[1..])?;
    if graded == 0 {
        before_write(to, info.op)?;
        let value = forward(&arrays, Out(Some(to)))?;
        settle(info.op, to, &value)?;
        after_write(to);
        if tracing() {
            trace(info, inputs, target);
        }
        return Ok(target.clone());
    }
    let pack = mode::pack();
    let ins = edges(inputs, graded)?;
    if mode::now().reading() {
        note_reads(info, &arrays, Some(0));
    }
    let mut slots = save_inputs(info, inputs, &arrays, graded, pack.as_ref(), Some(0))?;
    before_write(to, info.op)?;
    let value = forward(&arrays, Out(Some(to)))?;
    settle(info.op, to, &value)?;
    after_write(to);
    if to.dtype.is_float() {
        save_outputs(info, graded, pack.as_ref(), &[to], &mut slots)?;
        let node = node(op(), ins, line_of(mode::now(), info), &arrays, &[Meta::of(to)], slots);
        if pack.is_some() && !target.is_view() {
            node.slots().note_output(0, target);
        }
        rebase(target, to, node)?;
    }
    Ok(target.clone())
}
/// The target of an in-place operation has a new history: `node`. If it is a view, its base has: a copy-slices node around it.
pub fn rebase(target: &Tensor, to: &Array, node: Arc<Node>) -> Result<()> {
    let Some((base, _)) = target.view_info() else {
        target.set_edge(Edge::Node(node, 0));
        return Ok(());
    };
    let base = base.tensor();
    let whole = base.array();
    let views = node.info().views;
    let old = base.edge();
    let slices = views.copy_slices(old, &whole, &to.geometry(), node.clone());
    {
        let mut slots = node.slots();
        for v in slots.values.iter_mut() {
            *v = std::mem::take(v).onto_view(whole.geometry(), to, &slices);
        }
    }
    let edge = Edge::Node(slices, 0);
    base.set_edge(edge.clone());
    target.set_edge(views.strided(edge, &whole.geometry(), &to.geometry(), &Meta::of(to))?);
    Ok(())
}
/// History of a view from its base, made anew after the base was written (or None if nobody knows how).
pub fn strided_history(base: &Tensor, view: &Array) -> Option<Edge> {
    let edge = base.edge();
    let Edge::Node(n, _) = &edge else { return None };
    let views = n.info().views;
    let whole = base.array();
    views.strided(edge.clone(), &whole.geometry(), &view.geometry(), &Meta::of(view)).ok()
}

/// Records an op with several outputs, of which the first `info.visible` are returned. `kind`: what they are if they are views.
pub fn record_many(info: &'static Info, inputs: Operands<'_>, forward: Forwards<'_>, op: MakeOp<'_>) -> Result<SmallVec<[Tensor; 4]>> {
    let now = mode::now();
    let whole = info.visible != info.outputs.len() && mode::ask_whole(false);
    if now.dispatching()
        && let Some(out) = dispatch::run(How::Fresh, info, inputs, op, if whole { Wanted::Whole } else { Wanted::Visible })?
    {
        return Ok(out);
    }
    let lent = Lent::of(inputs);
    let arrays = lent.refs();
    let graded = if now.grad_enabled() { graded(info, inputs) } else { 0 };
    let visible = |n: usize| if info.visible == 0 || whole { n } else { info.visible };
    let view = |out: Array, edge: Edge| match inputs[0] {
        Some(parent) if info.view && !mode::below() => {
            Tensor::view_of(parent, out, edge, if mode::grad_enabled() { ViewKind::OneOfMany } else { ViewKind::NoGrad })
        }
        _ => match edge {
            Edge::None => Tensor::new(out),
            edge => Tensor::with_edge(out, edge),
        },
    };
    if graded == 0 {
        let outs = forward(&arrays)?;
        let n = visible(outs.len());
        let outs: SmallVec<[Tensor; 4]> = outs.into_iter().take(n).map(|a| view(a, Edge::None)).collect();
        if tracing() {
            outs.iter().enumerate().filter(|(i, _)| info.nondiff >> i & 1 == 0).for_each(|(_, out)| trace(info, inputs, out));
        }
        return Ok(outs);
    }
    let pack = mode::pack();
    let ins = edges(inputs, graded)?;
    if mode::now().reading() {
        note_reads(info, &arrays, None);
    }
    let mut slots = save_inputs(info, inputs, &arrays, graded, pack.as_ref(), None)?;
    let outs = forward(&arrays)?;
    if info.state != 0 {
        save_state(info, inputs, &arrays, graded, pack.as_ref(), &mut slots)?;
    }
    save_outputs(info, graded, pack.as_ref(), &outs.iter().collect::<SmallVec<[&Array; 4]>>(), &mut slots)?;
    if outs.is_empty() {
        return Ok(smallvec![]);
    }
    let n = visible(outs.len());
    let metas: SmallVec<[Meta; 4]> = outs.iter().map(Meta::of).collect();
    let node = node(op(), ins, line_of(mode::now(), info), &arrays, &metas, slots);
    Ok(outs
        .into_iter()
        .take(n)
        .enumerate()
        .map(|(i, a)| {
            let differentiable = a.dtype.is_float() && info.differentiable(i as u32);
            let t = view(a, if differentiable { Edge::Node(node.clone(), i as u32) } else { Edge::None });
            if pack.is_some() && info.saves_outputs {
                node.slots().note_output(i as u32, &t);
            }
            t
        })
        .collect())
}
