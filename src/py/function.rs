//! Custom functions: the context object of `autograd.Function`, `apply`, and the node that runs the user's backward.
//!
//! Ownership. The node owns the context (it calls the user's `backward` with it); the context knows its node weakly, so there is no cycle of ours. Cycles
//! through attributes of the context are seen by the collector: the node shows the context, the context its dict.
use super::call::call_stoppable;
use super::hooks::Handle;
use super::node::{self, next_functions, saved_list};
use super::tensor::{PyTensor, attached, wrap};
use crate::error::{Result, bail};
use crate::ops::views::PLAIN;
use crate::ops::{self};
use crate::tape::node::Meta;
use crate::tape::record::{Tracing, rebase};
use crate::tape::saved::{NO_INPUT, Origin, SlotName, Slots, Value, save};
use crate::tape::task::current_node;
use crate::tape::tensor::ViewKind;
use crate::tape::{Backward, Cx, Edge, Info, Node, Tensor, mode};
use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::{Arc, Weak};

/// What `forward` told its context.
struct Told {
    to_save: Option<Py<PyAny>>,
    dirty: Option<Py<PyAny>>,
    non_differentiable: Option<Py<PyAny>>,
    needs_input_grad: Option<Py<PyTuple>>,
    materialize: bool,
    materialize_nondiff: bool,
    /// Bit i: the saved value i was computed from inputs, and is neither input nor output.
    inner: u64,
    node: Weak<Node>,
}
#[pyclass(name = "_FunctionBase", module = "stowgrad._C", subclass, dict, weakref, frozen)]
pub struct FunctionBase {
    told: Mutex<Told>,
}
impl FunctionBase {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock()
    }
    fn node(&self) -> PyResult<Arc<Node>> {
        let node = self.told().node.upgrade();
        node.ok_or_else(|| {
            PyRuntimeError::new_err("this context has no node in the graph: its outputs do not require grad, or the graph is gone")
        })
    }
}
/// The node of a context, if the object is one.
pub fn node_of(o: &Bound<'_, PyAny>) -> Option<Arc<Node>> {
    o.cast::<FunctionBase>().ok().and_then(|f| f.get().node().ok())
}
fn items(o: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
    match o.cast::<PyTuple>() {
        Ok(t) => Ok(t.iter().map(Bound::unbind).collect()),
        Err(_) if o.is_instance_of::<PyTensor>() => Ok(vec![o.clone().unbind()]),
        Err(_) => o.try_iter()?.map(|x| Ok(x?.unbind())).collect(),
    }
}
#[pymethods]
impl FunctionBase {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        let told = Told {
            to_save: None,
            dirty: None,
            non_differentiable: None,
            needs_input_grad: None,
            materialize: true,
            materialize_nondiff: true,
            inner: 0,
            node: Weak::new(),
        };
        FunctionBase { told: Mutex::new(told) }
    }
    /// Saves tensors (or None) for backward, through the saved-tensor hooks; read them as `ctx.saved_tensors`.
    #[pyo3(signature = (*tensors))]
    fn save_for_backward(&self, tensors: &Bound<'_, PyTuple>) {
        let old = self.told().to_save.replace(tensors.clone().into_any().unbind());
        drop(old);
    }
    #[setter(to_save)]
    fn set_to_save(&self, v: Py<PyAny>) {
        let old = self.told().to_save.replace(v);
        drop(old);
    }
    #[getter(to_save)]
    fn get_to_save(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.told().to_save.as_ref().map(|v| v.clone_ref(py))
    }
    /// Says which inputs `forward` changed in place.
    #[pyo3(signature = (*args))]
    fn mark_dirty(&self, args: &Bound<'_, PyTuple>) {
        let old = self.told().dirty.replace(args.clone().into_any().unbind());
        drop(old);
    }
    #[setter(dirty_tensors)]
    fn set_dirty(&self, v: Py<PyAny>) {
        let old = self.told().dirty.replace(v);
        drop(old);
    }
    /// Says which outputs carry no gradient.
    #[pyo3(signature = (*args))]
    fn mark_non_differentiable(&self, args: &Bound<'_, PyTuple>) {
        let old = self.told().non_differentiable.replace(args.clone().into_any().unbind());
        drop(old);
    }
    #[setter(non_differentiable)]
    fn set_non_differentiable(&self, v: Py<PyAny>) {
        let old = self.told().non_differentiable.replace(v);
        drop(old);
    }
    /// Whether missing output gradients arrive in backward as zeros (True) or as None.
    fn set_materialize_grads(&self, value: bool) {
        self.told().materialize = value;
    }
    #[getter(materialize_grads)]
    fn get_materialize(&self) -> bool {
        self.told().materialize
    }
    #[setter(materialize_grads)]
    fn set_materialize(&self, value: bool) {
        self.told().materialize = value;
    }
    #[setter(_materialize_non_diff_grads)]
    fn set_materialize_nondiff(&self, value: bool) {
        self.told().materialize_nondiff = value;
    }
    #[getter(_materialize_non_diff_grads)]
    fn get_materialize_nondiff(&self) -> bool {
        self.told().materialize_nondiff
    }
    /// For each argument of `forward`: is it a tensor that requires grad?
    #[getter]
    fn needs_input_grad<'py>(&self, py: Python<'py>) -> Bound<'py, PyTuple> {
        let now = self.told().needs_input_grad.as_ref().map(|t| t.clone_ref(py));
        now.map_or_else(|| PyTuple::empty(py), |t| t.into_bound(py))
    }
    #[setter]
    fn set_needs_input_grad(&self, v: &Bound<'_, PyTuple>) {
        let old = self.told().needs_input_grad.replace(v.clone().unbind());
        drop(old);
    }
    /// What `save_for_backward` saved, unpacked.
    #[getter]
    fn saved_tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let node = self.told().node.upgrade();
        match node {
            Some(n) => {
                let inner = self.told().inner;
                let values = saved_list(py, &n, 0)?;
                let differentiating = mode::grad_enabled() && current_node().is_some_and(|x| Arc::ptr_eq(&x, &n));
                if inner == 0 || !differentiating {
                    return Ok(values);
                }
                let all = items(&values)?;
                let all = all.into_iter().enumerate().map(|(k, v)| match v.bind(py).cast::<PyTensor>() {
                    Ok(t) if k < 64 && inner >> k & 1 == 1 => Ok(wrap(py, unknown(&n, k, t.get().tensor()))?.into_any()),
                    _ => Ok(v.into_bound(py)),
                });
                Ok(PyTuple::new(py, all.collect::<PyResult<Vec<_>>>()?)?.into_any())
            }
            // before `apply` has ended, what was given is what there is
            None => match self.get_to_save(py) {
                Some(v) => Ok(PyTuple::new(py, items(v.bind(py))?)?.into_any()),
                None => Ok(PyTuple::empty(py).into_any()),
            },
        }
    }
    #[getter]
    fn saved_variables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.saved_tensors(py)
    }
    #[getter]
    fn _raw_saved_tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match node::lookup(py, &self.node()?, "_raw_saved_tensors")? {
            Some(v) => Ok(v),
            None => Ok(PyTuple::empty(py).into_any()),
        }
    }
    fn name(slf: &Bound<'_, Self>) -> PyResult<String> {
        Ok(slf.get_type().name()?.to_string())
    }
    #[getter]
    fn next_functions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        next_functions(py, &*self.node()?)
    }
    #[getter]
    fn metadata(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(node::metadata(py, &*self.node()?))
    }
    #[getter]
    fn _input_metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        node::input_metadata(py, &*self.node()?)
    }
    fn _sequence_nr(&self) -> PyResult<u64> {
        Ok(self.node()?.seq())
    }
    fn _set_sequence_nr(&self, nr: u64) -> PyResult<()> {
        self.node()?.set_seq(nr);
        Ok(())
    }
    fn register_hook(&self, r#fn: Py<PyAny>) -> PyResult<Handle> {
        Ok(node::register_hook(&self.node()?, r#fn))
    }
    fn register_prehook(&self, r#fn: Py<PyAny>) -> PyResult<Handle> {
        Ok(node::register_prehook(&self.node()?, r#fn))
    }
    /// Runs `forward`, and records it if a gradient may be asked for.
    #[classmethod]
    #[pyo3(signature = (*args))]
    fn apply<'py>(cls: &Bound<'py, PyType>, args: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        apply(cls, args)
    }
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        let Some(t) = self.told.try_lock() else { return Ok(()) };
        visit.call(&t.to_save)?;
        visit.call(&t.dirty)?;
        visit.call(&t.non_differentiable)?;
        visit.call(&t.needs_input_grad)
    }
    fn __clear__(&self) {
        let old = self.told.try_lock().map(|mut t| (t.to_save.take(), t.dirty.take(), t.non_differentiable.take()));
        drop(old);
    }
}

static CUSTOM: Info = Info { node: "PyFunction", op: "custom function", schema: "custom_function", visible: 0, every: true, ..PLAIN };
/// The node's operation: calls the context.
struct Custom {
    ctx: Py<FunctionBase>,
    /// For each argument of forward: the number of its input, if it is a tensor.
    inputs: Vec<Option<u32>>,
    nondiff: u64,
}
impl Backward for Custom {
    fn info(&self) -> &'static Info {
        &CUSTOM
    }
    fn name(&self) -> Cow<'static, str> {
        Cow::Owned(class_name(self.ctx.bind(attached())))
    }
    fn list(&self) -> Option<(&'static str, usize)> {
        Some(("tensors", 0))
    }
    fn takes_undefined(&self) -> bool {
        true
    }
    fn object(&self) -> Option<usize> {
        Some(self.ctx.as_ptr() as usize)
    }
    fn visit(&self, f: &mut dyn FnMut(usize)) {
        f(self.ctx.as_ptr() as usize);
    }
    fn backward(&self, g: &[Option<Tensor>], cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()> {
        let py = attached();
        let ctx = self.ctx.bind(py);
        let (materialize, materialize_nondiff) = {
            let t = ctx.get().told();
            (t.materialize, t.materialize_nondiff)
        };
        let mut given: SmallVec<[Bound<'_, PyAny>; 4]> = SmallVec::new();
        given.push(ctx.clone().into_any());
        for (i, g) in g.iter().enumerate() {
            let zeros = materialize && (materialize_nondiff || self.nondiff >> i & 1 == 0);
            given.push(match g {
                Some(t) => wrap(py, t.clone())?.into_any(),
                None if zeros => {
                    let m = cx.node.output(i);
                    wrap(py, ops::zeros(m.shape, m.dtype)?)?.into_any()
                }
                None => py.None().into_bound(py),
            });
        }
        // The engine's own `needs` decides what this call wants; the context keeps what `forward` was told.
        let r = call_stoppable(&derivative(ctx)?, &given, None)?;
        let results = match r.cast::<PyTuple>() {
            Ok(t) => t.clone(),
            Err(_) => PyTuple::new(py, [r])?,
        };
        let n = self.inputs.len();
        let spare = (n..results.len()).any(|i| !results.get_item(i).is_ok_and(|o| o.is_none()));
        if results.len() < n || spare {
            bail!(Runtime, "function {} returned an incorrect number of gradients (expected {n}, got {})", self.name(), results.len());
        }
        for (i, (o, to)) in results.iter().zip(&self.inputs).enumerate() {
            match (to, o.is_none()) {
                (_, true) => {}
                (None, false) => {
                    bail!(
                        Runtime,
                        "function {} returned a gradient different from None at position {}, but the corresponding forward input was not a Variable",
                        self.name(),
                        i + 1
                    )
                }
                (Some(to), false) => {
                    let Ok(t) = o.cast::<PyTensor>() else {
                        bail!(
                            Type,
                            "function {}: expected Tensor or None at position {}, but got {}",
                            self.name(),
                            i + 1,
                            o.get_type().name()?
                        )
                    };
                    grads[*to as usize] = Some(t.get().tensor().clone());
                }
            }
        }
        Ok(())
    }
}
fn class_name(ctx: &Bound<'_, FunctionBase>) -> String {
    ctx.get_type().name().map_or_else(|_| "?".into(), |n| n.to_string())
}
/// The user's `backward`, under that name or the name `vjp`.
fn derivative<'py>(ctx: &Bound<'py, FunctionBase>) -> PyResult<Bound<'py, PyAny>> {
    static ABSENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = ctx.py();
    // what the base class has under both names
    let absent = ABSENT.get_or_try_init(py, || -> PyResult<_> {
        Ok(py.import("stowgrad.autograd.function")?.getattr("Function")?.getattr("backward")?.unbind())
    })?;
    let class = ctx.get_type().getattr(pyo3::intern!(py, "_forward_cls"))?;
    let (backward, vjp) = (class.getattr(pyo3::intern!(py, "backward"))?, class.getattr(pyo3::intern!(py, "vjp"))?);
    if vjp.is(absent) {
        return Ok(backward);
    }
    if !backward.is(absent) {
        return Err(PyRuntimeError::new_err(format!(
            "Implementing both 'backward' and 'vjp' for a custom Function is not allowed: {} has both",
            class.getattr("__name__")?
        )));
    }
    Ok(vjp)
}
static INNER: Info = Info { node: "SavedInnerValue", op: "saved value", schema: "saved_value", visible: 0, every: true, ..PLAIN };
/// Stands for the derivative, which nobody knows, of a value that `forward` computed from its inputs and saved.
struct Inner {
    by: String,
    slot: usize,
}
impl Backward for Inner {
    fn info(&self) -> &'static Info {
        &INNER
    }
    fn backward(&self, _: &[Option<Tensor>], cx: &Cx<'_>, _: &mut [Option<Tensor>]) -> Result<()> {
        bail!(
            Runtime,
            "{}: a second derivative through saved_tensors[{}], of shape {:?}, is not known: forward computed it from its inputs, but it is no input and no output, so its own dependence on them was not recorded. Return it as an output too, or save inputs and compute it in backward",
            self.by,
            self.slot,
            cx.node.output(0).shape
        )
    }
}
/// The saved value with a history that ends in an error, should a gradient come that way.
fn unknown(n: &Arc<Node>, slot: usize, t: &Tensor) -> Tensor {
    let array = t.array();
    let first = Meta::of(&array);
    let inputs = n.inputs.iter().enumerate().map(|(i, x)| Node::input_like(x.edge.clone(), n.meta(i), &first)).collect();
    let op = Box::new(Inner { by: n.name().into_owned(), slot });
    Tensor::with_edge(array, Edge::Node(Node::new(mode::next_seq(), op, inputs, &[first], Slots::default(), None), 0))
}
fn apply<'py>(cls: &Bound<'py, PyType>, args: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    let py = cls.py();
    let ctx_any = cls.getattr(pyo3::intern!(py, "_backward_cls"))?.call0()?;
    let ctx = ctx_any.cast::<FunctionBase>()?;
    let mut tensors: SmallVec<[Tensor; 4]> = SmallVec::new();
    let mut inputs = Vec::with_capacity(args.len());
    let mut needs: SmallVec<[bool; 4]> = SmallVec::new();
    for a in args.iter_borrowed() {
        match a.cast::<PyTensor>() {
            Ok(t) => {
                let t = t.get().tensor();
                needs.push(t.requires_grad());
                inputs.push(Some(tensors.len() as u32));
                tensors.push(t.clone());
            }
            Err(_) => {
                needs.push(false);
                inputs.push(None);
            }
        }
    }
    let graded = mode::grad_enabled() && needs.contains(&true);
    ctx.get().set_needs_input_grad(&PyTuple::new(py, &needs)?);
    let setup: bool = cls.getattr(pyo3::intern!(py, "_has_setup_context"))?.is_truthy()?;
    let forward = cls.getattr(pyo3::intern!(py, "forward"))?;
    let wanting = if graded { tensors.iter().filter(|t| t.requires_grad()).map(Tensor::id).collect() } else { Vec::new() };
    let result = mode::no_grad(|| -> PyResult<Bound<'py, PyAny>> {
        let _tracing = graded.then(|| Tracing::start(wanting));
        if setup {
            let out = forward.call1(args)?;
            cls.getattr(pyo3::intern!(py, "setup_context"))?.call1((ctx, args, &out))?;
            return Ok(out);
        }
        let mut all: SmallVec<[Bound<'py, PyAny>; 5]> = SmallVec::new();
        all.push(ctx.clone().into_any());
        for a in args.iter() {
            all.push(a);
        }
        Ok(call_stoppable(&forward, &all, None)?)
    })?;
    finish(py, ctx, &tensors, inputs, graded, result)
}
fn listed(o: &Option<Py<PyAny>>, py: Python<'_>, what: &str) -> PyResult<Vec<Tensor>> {
    let Some(o) = o else { return Ok(Vec::new()) };
    items(o.bind(py))?
        .into_iter()
        .map(|x| match x.bind(py).cast::<PyTensor>() {
            Ok(t) => Ok(t.get().tensor().clone()),
            Err(_) => Err(PyTypeError::new_err(format!("{what} accepts only Tensors, not {}", x.bind(py).get_type().name()?))),
        })
        .collect()
}
/// Gives the outputs of `forward` their history, and packs what was saved.
fn finish<'py>(
    py: Python<'py>,
    ctx: &Bound<'py, FunctionBase>,
    tensors: &[Tensor],
    inputs: Vec<Option<u32>>,
    graded: bool,
    result: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let many = result.cast::<PyTuple>().ok().cloned();
    let mut given: SmallVec<[Bound<'py, PyAny>; 2]> = SmallVec::new();
    match &many {
        Some(t) => given.extend(t.iter()),
        None => given.push(result.clone()),
    }
    let (to_save, dirty, nondiff) = {
        let mut t = ctx.get().told();
        (t.to_save.take(), t.dirty.take(), t.non_differentiable.take())
    };
    let name = || class_name(ctx);
    let dirty = listed(&dirty, py, "mark_dirty")?;
    let nondiff = listed(&nondiff, py, "mark_non_differentiable")?;
    let among = |list: &[Tensor], t: &Tensor| list.iter().any(|x| x.ptr_eq(t));
    if !given.iter().any(|o| o.is_instance_of::<PyTensor>()) && many.is_none() {
        return Err(PyTypeError::new_err(format!(
            "{}.forward: expected Tensor or tuple of Tensor (got {}) for return value 0",
            name(),
            result.get_type().name()?
        )));
    }
    for d in &dirty {
        if !given.iter().any(|o| o.cast::<PyTensor>().is_ok_and(|t| t.get().tensor().ptr_eq(d))) {
            return Err(PyRuntimeError::new_err(format!(
                "{}: Some elements marked as dirty during the forward method were not returned as output. The inputs that are modified inplace must all be outputs of the Function.",
                name()
            )));
        }
        if graded && among(tensors, d) {
            d.check_in_place("a custom function", true)?;
            if d.is_view() && given.len() > 1 {
                return Err(PyRuntimeError::new_err(format!(
                    "{}: If your Function modifies inplace an input that is a view of another Tensor, your Function cannot return more than one Tensor ({} are returned). Mark the base as dirty, or return one Tensor",
                    name(),
                    given.len()
                )));
            }
        }
        d.array().bump();
    }
    if !graded {
        // nothing is recorded; an input returned as it is becomes an alias, as in torch
        let outs = given.into_iter().map(|o| -> PyResult<Bound<'py, PyAny>> {
            match o.cast::<PyTensor>() {
                Ok(t) if among(tensors, t.get().tensor()) && !among(&dirty, t.get().tensor()) => {
                    Ok(wrap(py, mode::no_grad(|| ops::alias(t.get().tensor()))?)?.into_any())
                }
                _ => Ok(o),
            }
        });
        return back(py, many.is_some(), outs.collect::<PyResult<Vec<_>>>()?);
    }
    let mut metas: SmallVec<[Meta; 4]> = SmallVec::new();
    let mut mask = 0u64;
    for (i, o) in given.iter().enumerate() {
        match o.cast::<PyTensor>() {
            Ok(t) => {
                let t = t.get().tensor();
                let m = t.look(Meta::of);
                if i < 64 && (among(&nondiff, t) || !m.dtype.is_float()) {
                    mask |= 1 << i;
                }
                metas.push(m);
            }
            Err(_) => metas.push(Meta { shape: Default::default(), dtype: crate::dtype::default_dtype() }),
        }
    }
    let mut node_inputs = crate::tape::node::Inputs::new();
    for t in tensors {
        let mut input = crate::tape::node::Input::along(if t.requires_grad() { t.edge() } else { Edge::None });
        t.look(|a| input.looks(a, &metas[0]));
        node_inputs.push(input);
    }
    let op = Box::new(Custom { ctx: ctx.clone().unbind(), inputs, nondiff: mask });
    let n = Node::new(mode::next_seq(), op, node_inputs, &metas, Slots::default(), super::hooks::line());
    ctx.get().told().node = Arc::downgrade(&n);
    // outputs get their history first: a saved output leads to this node
    let mut outs: Vec<Bound<'py, PyAny>> = Vec::with_capacity(given.len());
    let mut finals: SmallVec<[(Tensor, Tensor, u32); 2]> = SmallVec::new();
    for (i, o) in given.iter().enumerate() {
        let Ok(w) = o.cast::<PyTensor>() else {
            outs.push(o.clone());
            continue;
        };
        let t = w.get().tensor();
        let differentiable = mask >> i.min(63) & 1 == 0;
        let (is_input, is_dirty) = (among(tensors, t), among(&dirty, t));
        let out = if is_dirty {
            match differentiable {
                true if t.is_view() => rebase(t, &t.array(), n.clone())?,
                true => t.set_edge(Edge::Node(n.clone(), i as u32)),
                false => {}
            }
            t.clone()
        } else if is_input {
            let alias = mode::no_grad(|| ops::alias(t))?;
            alias.set_view_kind(ViewKind::Custom);
            if differentiable {
                alias.set_edge(Edge::Node(n.clone(), i as u32));
            } else {
                alias.forget_base();
            }
            alias
        } else {
            if t.is_view() {
                t.set_view_kind(ViewKind::Custom);
            }
            if differentiable {
                t.set_edge(Edge::Node(n.clone(), i as u32));
            }
            t.clone()
        };
        finals.push((t.clone(), out.clone(), i as u32));
        outs.push(wrap(py, out)?.into_any());
    }
    if let Some(list) = to_save {
        let mut values: SmallVec<[Value; 2]> = SmallVec::new();
        let pack = mode::pack();
        for (k, o) in items(list.bind(py))
            .map_err(|_| PyTypeError::new_err(format!("save_for_backward can only save variables, got {}", list.bind(py))))?
            .into_iter()
            .enumerate()
        {
            let o = o.bind(py);
            if o.is_none() {
                values.push(Value::Empty);
                continue;
            }
            let Ok(w) = o.cast::<PyTensor>() else {
                return Err(PyTypeError::new_err(format!(
                    "save_for_backward can only save variables, but argument {k} is of type {}",
                    o.get_type().name()?
                )));
            };
            let t = w.get().tensor();
            let slot = SlotName::nth("tensors", k);
            let as_output = finals.iter().find(|(given, _, _)| given.ptr_eq(t));
            if k < 64 && as_output.is_none() && !among(tensors, t) && t.is_traced() && !t.requires_grad() {
                ctx.get().told().inner |= 1 << k;
            }
            let value = match as_output {
                Some((_, out, nr)) if !among(tensors, t) || among(&dirty, t) => {
                    save(pack.as_ref(), "custom function", slot, &out.array(), Origin::Output(*nr), 0)?
                }
                _ => {
                    let input = tensors.iter().position(|x| x.ptr_eq(t)).map_or(NO_INPUT, |i| i as u32);
                    save(pack.as_ref(), "custom function", slot, &t.array(), Origin::Input(t), input)?
                }
            };
            values.push(value);
        }
        let old = std::mem::replace(&mut *n.slots(), Slots { values, ..Default::default() });
        drop(old);
    }
    back(py, many.is_some(), outs)
}
fn back<'py>(py: Python<'py>, many: bool, mut outs: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    if many {
        return Ok(PyTuple::new(py, outs)?.into_any());
    }
    outs.pop().ok_or_else(|| PyValueError::new_err("forward returned nothing"))
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<FunctionBase>()
}
