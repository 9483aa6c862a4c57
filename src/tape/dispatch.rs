//! Operations that somebody intercepts: a dispatch mode of the thread, or a subclass among the inputs. The order is that of `record`, with
//! the host in the place of the kernel: inputs are saved, the host answers, outputs are saved, the node is made. So what a handler gives is
//! what autograd wraps, and the handler itself is below autograd (`mode::Below`).
//!
//! Knows nothing of modes or classes: `Host::intercepts` says whether anybody waits, `Host::dispatch` asks them.
use super::hooks::host;
use super::mode;
use super::node::{Attr, Edge, Info, Meta};
use super::random::RandomSource;
use super::record::{
    self, How, Lent, MakeOp, Operands, after_write, before_write, edges, graded, note_reads, rebase, save_inputs, save_outputs, save_state,
};
use super::saved::Slots;
use super::tensor::{Tensor, ViewKind};
use crate::array::Array;
use crate::dtype::Scalar;
use crate::error::{Error, Result, bail};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

/// An argument of an op, as a handler gets it.
#[derive(Clone)]
pub enum Arg {
    Tensor(Tensor),
    Tensors(Vec<Option<Tensor>>),
    Attr(Attr),
    Source(RandomSource),
    /// The CPU, as a device.
    Cpu,
    /// Strided memory, as a layout.
    Strided,
    List(Vec<Arg>),
    /// Something made in Rust alone, to be handed back as it is.
    Opaque(Arc<dyn Any + Send + Sync>),
}
/// Arguments by name.
pub type Named = Vec<(&'static str, Arg)>;
/// An op on its way, as `Host::dispatch` sees it.
pub struct Call<'a> {
    pub info: &'static Info,
    pub how: How<'a>,
    pub inputs: Operands<'a>,
    /// Inputs from this number on are one list, of this name.
    pub list: Option<(&'static str, usize)>,
    /// Arguments that are no inputs.
    pub params: Named,
}
/// What a handler gave.
pub enum Got {
    Tensors(Vec<Tensor>),
    Number(Scalar),
    None,
}
type Outputs = SmallVec<[Tensor; 4]>;

/// How many outputs an op has, and which of them its caller gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    One,
    /// Those of several that the user gets.
    Visible,
    /// Those for backward alone too.
    Whole,
}
/// One op through whoever intercepts; None if nobody does.
#[cold]
pub(super) fn run(how: How<'_>, info: &'static Info, inputs: Operands<'_>, op: MakeOp<'_>, want: Wanted) -> Result<Option<Outputs>> {
    let Some(h) = host().filter(|h| h.intercepts(info, how, inputs)) else { return Ok(None) };
    let made = op();
    let call = Call { info, how, inputs, list: made.operands(), params: made.params() };
    let ask = || -> Result<Vec<Tensor>> {
        match h.dispatch(&call)? {
            Got::Tensors(t) => Ok(t),
            Got::Number(_) | Got::None => bail!(Runtime, "{}: a handler must return a tensor for this operation", info.schema),
        }
    };
    let graded = if mode::grad_enabled() { graded(info, inputs) } else { 0 };
    match how {
        How::Fresh => fresh(graded, want, info, inputs, op, &ask).map(Some),
        How::InPlace => in_place(graded, info, inputs, op, &ask).map(|t| Some(SmallVec::from_iter([t]))),
        How::Into(out) => {
            if graded != 0 || (mode::grad_enabled() && out.requires_grad()) {
                return Err(Box::new(Error::OutGrad { op: info.op }));
            }
            written(out, info.op, &ask)?;
            Ok(Some(SmallVec::from_iter([out.clone()])))
        }
    }
}
/// The parameter of functions that make leaves.
pub const REQUIRES_GRAD: &str = "requires_grad";
/// A function that records nothing, through whoever intercepts.
#[cold]
pub fn function(info: &'static Info, inputs: Operands<'_>, params: &dyn Fn() -> Named) -> Result<Option<Got>> {
    let Some(h) = host().filter(|h| h.intercepts(info, How::Fresh, inputs)) else { return Ok(None) };
    // whether the result requires grad is above the handler
    let is_flag = |(name, _): &(&str, Arg)| *name == REQUIRES_GRAD;
    let (flag, params): (Named, Named) = params().into_iter().partition(is_flag);
    let (out, params): (Named, Named) = params.into_iter().partition(|(name, a)| *name == "out" && matches!(a, Arg::Tensor(_)));
    let ask = |how: How<'_>, params: Named| h.dispatch(&Call { info, how, inputs, list: None, params });
    if let Some((_, Arg::Tensor(out))) = out.first() {
        written(out, info.op, &|| ask(How::Into(out), params.clone()).map(|_| Vec::new()))?;
        return Ok(Some(Got::Tensors(vec![out.clone()])));
    }
    let got = ask(How::Fresh, params)?;
    if let (Some((_, Arg::Attr(Attr::Scalar(Scalar::Bool(true))))), Got::Tensors(made)) = (flag.first(), &got) {
        made.iter().try_for_each(|t| t.set_requires_grad(true))?;
    }
    Ok(Some(got))
}
/// The handler writes into `to`; if it did not move the version, that is done here.
fn written(to: &Tensor, op: &'static str, ask: &dyn Fn() -> Result<Vec<Tensor>>) -> Result<()> {
    let a = to.array();
    before_write(&a, op)?;
    let version = a.version();
    ask()?;
    to.look(|a| {
        if a.version() == version {
            after_write(a)
        }
    });
    Ok(())
}
fn fresh(
    graded: u64,
    want: Wanted,
    info: &'static Info,
    inputs: Operands<'_>,
    op: MakeOp<'_>,
    ask: &dyn Fn() -> Result<Vec<Tensor>>,
) -> Result<Outputs> {
    let many = want != Wanted::One;
    let count = if info.outputs.is_empty() { None } else { Some(if many { info.outputs.len() } else { 1 }) };
    let all = || -> Result<Vec<Tensor>> {
        let outs = ask()?;
        match count {
            Some(n) if n != outs.len() => {
                bail!(Runtime, "{}: a handler must return {n} tensors for this operation, not {}", info.schema, outs.len())
            }
            _ => Ok(outs),
        }
    };
    let kind = match (mode::grad_enabled(), many) {
        (false, _) => ViewKind::NoGrad,
        (true, true) => ViewKind::OneOfMany,
        (true, false) => ViewKind::Plain,
    };
    let visible = |n: usize| if info.visible == 0 || want == Wanted::Whole { n } else { info.visible };
    if graded == 0 {
        let outs = all()?;
        let n = visible(outs.len());
        return Ok(outs.into_iter().take(n).map(|t| adopt(t, info, inputs, Edge::None, kind)).collect());
    }
    let lent = Lent::of(inputs);
    let arrays = lent.refs();
    let pack = mode::pack();
    let ins = edges(inputs, graded)?;
    if mode::now().reading() {
        note_reads(info, &arrays, None);
    }
    let mut slots = save_inputs(info, inputs, &arrays, graded, pack.as_ref(), None)?;
    let outs = all()?;
    if outs.is_empty() {
        return Ok(SmallVec::new());
    }
    let made: Vec<Array> = outs.iter().map(Tensor::array).collect();
    if info.state != 0 {
        save_state(info, inputs, &arrays, graded, pack.as_ref(), &mut slots)?;
    }
    let n = visible(outs.len());
    if !many && !made[0].dtype.is_float() {
        return Ok(outs.into_iter().take(n).map(|t| adopt(t, info, inputs, Edge::None, kind)).collect());
    }
    save_outputs(info, graded, pack.as_ref(), &made.iter().collect::<SmallVec<[&Array; 4]>>(), &mut slots)?;
    let metas: SmallVec<[Meta; 4]> = made.iter().map(Meta::of).collect();
    let node = record::node(op(), ins, record::line_of(mode::now(), info), &arrays, &metas, slots);
    let history = |(i, (t, a)): (usize, (Tensor, Array))| {
        let differentiable = a.dtype.is_float() && info.differentiable(i as u32);
        let t = adopt(t, info, inputs, if differentiable { Edge::Node(node.clone(), i as u32) } else { Edge::None }, kind);
        if pack.is_some() && info.saves_outputs {
            node.slots().note_output(i as u32, &t);
        }
        t
    };
    Ok(outs.into_iter().zip(made).take(n).enumerate().map(history).collect())
}
/// What a handler gave, with its history: the very tensor, unless it has a history already, or is an input.
fn adopt(t: Tensor, info: &'static Info, inputs: Operands<'_>, edge: Edge, kind: ViewKind) -> Tensor {
    let known = t.requires_grad() || inputs.iter().flatten().any(|i| i.ptr_eq(&t));
    if known && edge.is_none() {
        return t;
    }
    let t = if known { Tensor::new(t.array()) } else { t };
    if info.view
        && !t.is_view()
        && let Some(parent) = inputs[0]
        && parent.look(|a| t.look(|b| a.shares(b)))
    {
        t.become_view_of(parent, kind);
    }
    if !edge.is_none() {
        t.set_edge(edge);
    }
    t
}
fn in_place(
    graded: u64,
    info: &'static Info,
    inputs: Operands<'_>,
    op: MakeOp<'_>,
    ask: &dyn Fn() -> Result<Vec<Tensor>>,
) -> Result<Tensor> {
    let target = inputs[0].expect("an in-place op has a target");
    target.check_in_place(info.op, graded != 0)?;
    if graded == 0 {
        written(target, info.op, ask)?;
        return Ok(target.clone());
    }
    let lent = Lent::of(inputs);
    let arrays = lent.refs();
    let pack = mode::pack();
    let ins = edges(inputs, graded)?;
    if mode::now().reading() {
        note_reads(info, &arrays, Some(0));
    }
    let mut slots: Slots = save_inputs(info, inputs, &arrays, graded, pack.as_ref(), Some(0))?;
    written(target, info.op, ask)?;
    let to = target.array();
    if to.dtype.is_float() {
        save_outputs(info, graded, pack.as_ref(), &[&to], &mut slots)?;
        let node = record::node(op(), ins, record::line_of(mode::now(), info), &arrays, &[Meta::of(&to)], slots);
        rebase(target, &to, node)?;
    }
    Ok(target.clone())
}

/// What a function gives back from a handler's answer.
pub trait FromGot: Sized {
    fn from_got(g: Got, op: &'static str) -> Result<Self>;
}
fn wrong<T>(op: &str, wanted: &str) -> Result<T> {
    bail!(Runtime, "{op}: a handler must return {wanted} for this operation")
}
impl FromGot for Tensor {
    fn from_got(g: Got, op: &'static str) -> Result<Self> {
        match g {
            Got::Tensors(mut t) if t.len() == 1 => Ok(t.swap_remove(0)),
            _ => wrong(op, "a tensor"),
        }
    }
}
impl FromGot for Vec<Tensor> {
    fn from_got(g: Got, op: &'static str) -> Result<Self> {
        match g {
            Got::Tensors(t) => Ok(t),
            _ => wrong(op, "tensors"),
        }
    }
}
impl FromGot for bool {
    fn from_got(g: Got, op: &'static str) -> Result<Self> {
        match g {
            Got::Number(Scalar::Bool(b)) => Ok(b),
            _ => wrong(op, "a bool"),
        }
    }
}
impl FromGot for Scalar {
    fn from_got(g: Got, op: &'static str) -> Result<Self> {
        match g {
            Got::Number(s) => Ok(s),
            _ => wrong(op, "a number"),
        }
    }
}
