//! What a tensor object offers besides ops: its looks, its gradient and history, and the calls that touch them.
use super::dtype::PyDType;
use super::graph::{register_after_hook, register_tensor_hook, retain_grad};
use super::hooks::Handle;
use super::node::wrap_node;
use super::size::new_size;
use super::tensor::{PyTensor, wrap, wrap_as, wrap_held};
use crate::array::Array;
use crate::engine::{self, Request};
use crate::layout::{is_contiguous, is_dense};
use crate::ops::macros::function;
use crate::tape::record::before_write;
use crate::tape::tensor::Held;
use crate::tape::{GradHook, Tensor, mode};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use std::sync::Arc;

fn shape_of<'py>(py: Python<'py>, s: &crate::layout::Dims) -> PyResult<Bound<'py, PyAny>> {
    new_size(py, s.len(), |d| s[d] as i64)
}
fn tensor_of<'a>(o: &'a Bound<'_, PyAny>, what: &str) -> PyResult<&'a Tensor> {
    match o.cast::<PyTensor>() {
        Ok(t) => Ok(t.get().tensor()),
        Err(_) => Err(PyTypeError::new_err(format!("{what} must be a Tensor, not {}", o.get_type().name()?))),
    }
}
/// A new tensor as an object of the class that `like` has; a parameter's is a plain one.
fn as_class_of<'py>(like: &Bound<'py, PyTensor>, t: Tensor) -> PyResult<Bound<'py, PyAny>> {
    if super::call::plain_tensor(like.as_any().as_borrowed()).is_some() {
        Ok(wrap(like.py(), t)?.into_any())
    } else {
        wrap_as(&like.get_type(), t)
    }
}
/// Pickling and copying are written in Python (`serialization.pickles`).
fn pickles<'py>(slf: &Bound<'py, PyTensor>, name: &str, with: impl IntoPyObjectExt<'py>) -> PyResult<Bound<'py, PyAny>> {
    let py = slf.py();
    py.import("stowgrad.serialization.pickles")?.getattr(name)?.call1((slf, with.into_bound_py_any(py)?))
}
#[pymethods]
impl PyTensor {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        shape_of(py, &self.tensor().shape())
    }
    /// The shape, or the length of one dimension.
    #[pyo3(signature = (dim = None))]
    fn size<'py>(&self, py: Python<'py>, dim: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let shape = self.tensor().shape();
        match dim {
            None => shape_of(py, &shape),
            Some(d) => {
                let d = crate::layout::wrap_dim(d.extract::<i64>()?, shape.len())?;
                match shape.get(d) {
                    Some(&n) => Ok(n.into_pyobject(py)?.into_any()),
                    None => Err(pyo3::exceptions::PyIndexError::new_err("Dimension specified as 0 but tensor has no dimensions")),
                }
            }
        }
    }
    /// Steps in elements, or that of one dimension.
    #[pyo3(signature = (dim = None))]
    fn stride<'py>(&self, py: Python<'py>, dim: Option<i64>) -> PyResult<Bound<'py, PyAny>> {
        let strides = self.tensor().look(|a| a.strides);
        match dim {
            None => Ok(PyTuple::new(py, strides.iter())?.into_any()),
            Some(d) => {
                let d = crate::layout::wrap_dim(d, strides.len())?;
                Ok(strides.get(d).copied().unwrap_or(1).into_pyobject(py)?.into_any())
            }
        }
    }
    fn storage_offset(&self) -> usize {
        self.tensor().look(|a| a.offset)
    }
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyDType> {
        PyDType::get(py, self.tensor().dtype())
    }
    #[getter]
    fn ndim(&self) -> usize {
        self.tensor().ndim()
    }
    fn dim(&self) -> usize {
        self.tensor().ndim()
    }
    fn ndimension(&self) -> usize {
        self.tensor().ndim()
    }
    fn numel(&self) -> usize {
        self.tensor().numel()
    }
    fn nelement(&self) -> usize {
        self.tensor().numel()
    }
    fn element_size(&self) -> usize {
        self.tensor().dtype().size()
    }
    #[getter]
    fn itemsize(&self) -> usize {
        self.tensor().dtype().size()
    }
    /// Bytes of the elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor().look(Array::nbytes)
    }
    /// Address of the first element.
    fn data_ptr(&self) -> usize {
        self.tensor().look(|a| if a.numel() == 0 { 0 } else { a.storage().ptr() as usize + a.offset * a.dtype.size() })
    }
    #[pyo3(signature = (*, memory_format = None))]
    fn is_contiguous(&self, memory_format: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let (shape, strides) = self.tensor().look(|a| (a.shape, a.strides));
        match memory_format.map(|m| m.str()).transpose()? {
            Some(m) if m.to_string().contains("channels_last") => {
                let Some((&n, &c, rest)) = shape.split_first().and_then(|(n, r)| r.split_first().map(|(c, rest)| (n, c, rest))) else {
                    return Ok(false);
                };
                let order: Vec<usize> = std::iter::once(n).chain(rest.iter().copied()).chain([c]).collect();
                let steps: Vec<usize> = std::iter::once(strides[0]).chain(strides[2..].iter().copied()).chain([strides[1]]).collect();
                Ok(is_contiguous(&order, &steps))
            }
            _ => Ok(is_contiguous(&shape, &strides)),
        }
    }
    fn is_non_overlapping_and_dense(&self) -> bool {
        self.tensor().look(|a| is_dense(&a.shape, &a.strides))
    }
    fn is_floating_point(&self) -> bool {
        self.tensor().dtype().is_float()
    }
    fn is_complex(&self) -> bool {
        false
    }
    fn is_signed(&self) -> bool {
        self.tensor().dtype().is_signed()
    }
    fn is_inference(&self) -> bool {
        self.tensor().is_inference()
    }
    fn is_set_to(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        let o = tensor_of(tensor, "is_set_to(): tensor")?.array();
        Ok(self.tensor().look(|a| a.shares(&o) && a.offset == o.offset && a.shape == o.shape && a.strides == o.strides))
    }
    #[getter]
    fn requires_grad(&self) -> bool {
        self.tensor().requires_grad()
    }
    #[setter]
    fn set_requires_grad(&self, on: bool) -> PyResult<()> {
        Ok(self.tensor().set_requires_grad(on)?)
    }
    /// Sets `requires_grad` and returns the tensor. RuntimeError unless its dtype is floating point.
    #[pyo3(signature = (requires_grad = true))]
    fn requires_grad_<'py>(slf: Bound<'py, Self>, requires_grad: bool) -> PyResult<Bound<'py, Self>> {
        slf.get().tensor().set_requires_grad(requires_grad)?;
        Ok(slf)
    }
    #[getter]
    fn is_leaf(&self) -> bool {
        self.tensor().is_leaf()
    }
    #[getter]
    fn output_nr(&self) -> u32 {
        self.tensor().grad_fn().map_or(0, |(_, nr)| nr)
    }
    #[getter]
    fn retains_grad(&self) -> bool {
        self.tensor().retains_grad()
    }
    #[getter]
    fn _version(&self) -> PyResult<u64> {
        if self.tensor().is_inference() {
            return Err(PyRuntimeError::new_err("Inference tensors do not track version counter."));
        }
        Ok(self.tensor().version())
    }
    #[getter]
    fn grad_fn<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.tensor().check_history()?;
        self.tensor().grad_fn().map(|(n, _)| wrap_node(py, &n)).transpose()
    }
    #[getter]
    fn _grad_fn<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.grad_fn(py)
    }
    #[getter]
    fn grad<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTensor>>> {
        let t = self.tensor();
        match t.grad() {
            None => Ok(None),
            Some(g) => {
                let w = wrap_held(py, &g)?;
                if matches!(g, Held::Core(_)) {
                    t.promote_grad(Held::of(w.get().tensor()));
                }
                Ok(Some(w))
            }
        }
    }
    #[setter]
    fn set_grad(slf: &Bound<'_, Self>, grad: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let t = slf.get().tensor();
        let new = match grad {
            None => None,
            Some(g) if g.is_none() => None,
            Some(g) => {
                let new = tensor_of(g, "the assigned grad")?;
                if new.ptr_eq(t) {
                    return Err(PyRuntimeError::new_err("can't assign Variable as its own grad"));
                }
                let ((shape, dtype), (want, like)) = (new.look(|a| (a.shape, a.dtype)), t.look(|a| (a.shape, a.dtype)));
                if shape != want {
                    return Err(PyRuntimeError::new_err(format!(
                        "assigned grad has data of a different size: {shape:?} for a tensor of shape {want:?}"
                    )));
                }
                if dtype != like {
                    return Err(PyRuntimeError::new_err(format!(
                        "assigned grad has data of a different type: {} for a tensor of {}",
                        dtype.name(),
                        like.name()
                    )));
                }
                Some(Held::of(new))
            }
        };
        drop(t.set_grad(new));
        Ok(())
    }
    #[deleter(grad)]
    fn delete_grad(&self) {
        drop(self.tensor().set_grad(None));
    }
    /// The tensor without history, with a version counter of its own: writes through it are not seen by autograd.
    #[getter]
    fn data<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        as_class_of(slf, slf.get().tensor().data())
    }
    #[setter]
    fn set_data(&self, new: &Bound<'_, PyAny>) -> PyResult<()> {
        let new = tensor_of(new, "data")?.array();
        let t = self.tensor();
        let old = t.array();
        if t.requires_grad() && !new.dtype.is_float() {
            return Err(PyRuntimeError::new_err("data set to a tensor that requires gradients must be floating point or complex dtype"));
        }
        old.before_write()?;
        let kept = new.counted_as(&old);
        drop(t.replace_array(kept));
        Ok(())
    }
    /// The same elements without history; writes are seen by autograd (the version is shared).
    fn detach<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let run = || as_class_of(slf, crate::ops::detach(slf.get().tensor())?);
        match super::call::plain_tensor(slf.as_any().as_borrowed()) {
            Some(t) => Ok(wrap(slf.py(), crate::ops::detach(t)?)?.into_any()),
            None => super::special::through("detach", &[slf.as_any()], run),
        }
    }
    fn detach_<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let t = slf.get().tensor();
        if t.is_view() && t.requires_grad() {
            return Err(PyRuntimeError::new_err("Can't detach views in-place. Use detach() instead."));
        }
        t.forget_history();
        Ok(slf)
    }
    #[getter]
    fn _base<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTensor>>> {
        let t = self.tensor();
        match t.base() {
            None => Ok(None),
            Some(b) => {
                let w = wrap_held(py, &b)?;
                if matches!(b, Held::Core(_)) {
                    t.promote_base(Held::of(w.get().tensor()));
                }
                Ok(Some(w))
            }
        }
    }
    fn _is_view(&self) -> bool {
        self.tensor().is_view()
    }
    /// Hooks on the gradient of this tensor, by their handles' ids; None if there are none.
    #[getter]
    fn _backward_hooks<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, pyo3::types::PyDict>>> {
        let hooks: Vec<(u64, Arc<dyn GradHook>)> = match self.tensor().grad_fn() {
            None => self.tensor().look_extra(|e| e.leaf_hooks.clone()).unwrap_or_default(),
            Some((n, nr)) if n.is_hooked() => {
                n.with_hooks(|h| h.tensor.iter().filter(|(_, at, _)| *at == nr).map(|(i, _, h)| (*i, h.clone())).collect())
            }
            Some(_) => Vec::new(),
        };
        if hooks.is_empty() {
            return Ok(None);
        }
        let found = pyo3::types::PyDict::new(py);
        for (id, h) in &hooks {
            let mut functions = Vec::new();
            h.visit(&mut |at| functions.push(super::tensor::object_at(py, at)));
            found.set_item(id, functions.into_iter().next())?;
        }
        Ok(Some(found))
    }
    /// Adds the gradients of this tensor (weighted by `gradient`) to the `.grad` of the leaves, or of `inputs` only.
    ///
    /// RuntimeError for a tensor of more than one element without `gradient`, one that does not require grad, or a graph that was freed.
    #[pyo3(signature = (gradient = None, retain_graph = None, create_graph = false, inputs = None))]
    fn backward<'py>(
        slf: &Bound<'py, Self>,
        gradient: Option<&Bound<'py, PyAny>>,
        retain_graph: Option<bool>,
        create_graph: bool,
        inputs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let py = slf.py();
        if let Some(inputs) = inputs {
            let backward = py.import("stowgrad.autograd")?.getattr("backward")?;
            backward.call1((slf, gradient, retain_graph, create_graph, py.None(), inputs))?;
            return Ok(());
        }
        let g = match gradient {
            Some(g) if !g.is_none() => Some(tensor_of(g, "gradient")?.clone()),
            _ => None,
        };
        engine::run(Request {
            roots: vec![(slf.get().tensor().clone(), g)],
            edges: Vec::new(),
            retain_graph: retain_graph.unwrap_or(create_graph),
            create_graph,
            inputs: None,
            keepers: Vec::new(),
            accumulate: true,
            allow_unused: true,
        })?;
        Ok(())
    }
    /// Calls `hook(grad)` when the gradient of this tensor is known; what it returns, if not None, replaces it.
    fn register_hook(&self, hook: Py<PyAny>) -> PyResult<Handle> {
        register_tensor_hook(self.tensor(), hook)
    }
    /// Calls `hook(tensor)` after a gradient was added to `.grad` of this leaf.
    fn register_post_accumulate_grad_hook(&self, hook: Py<PyAny>) -> PyResult<Handle> {
        register_after_hook(self.tensor(), hook)
    }
    /// Keeps the gradient of a tensor that is no leaf in `.grad`.
    fn retain_grad(&self) -> PyResult<()> {
        retain_grad(self.tensor())
    }
    /// A tensor of class `cls`, a subclass of Tensor, on the elements of `data`.
    #[staticmethod]
    #[pyo3(signature = (cls, data, requires_grad = false))]
    fn _make_subclass<'py>(cls: &Bound<'py, PyType>, data: &Bound<'py, PyAny>, requires_grad: bool) -> PyResult<Bound<'py, PyAny>> {
        let t = tensor_of(data, "data")?.detach();
        let obj = wrap_as(cls, t)?;
        if requires_grad {
            obj.cast::<PyTensor>()?.get().tensor().set_requires_grad(true)?;
        }
        Ok(obj)
    }
    /// This tensor as one of class `cls`, with its history.
    fn as_subclass<'py>(&self, cls: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
        wrap_as(cls, crate::ops::alias(self.tensor())?)
    }
    /// Makes this tensor name another's storage and layout; its version counter stays.
    #[pyo3(signature = (source, storage_offset = 0, size = None, stride = None))]
    fn set_<'py>(
        slf: Bound<'py, Self>,
        source: &Bound<'py, PyAny>,
        storage_offset: usize,
        size: Option<Vec<usize>>,
        stride: Option<Vec<usize>>,
    ) -> PyResult<Bound<'py, Self>> {
        let t = slf.get().tensor();
        t.check_in_place("set_", false)?;
        let old = t.array();
        let from = match source.cast::<super::convert::PyStorage>() {
            Ok(s) => s.get().row(old.dtype)?,
            Err(_) => tensor_of(source, "set_(): source")?.array(),
        };
        if from.dtype != old.dtype {
            return Err(PyRuntimeError::new_err(format!(
                "set_(): could not set tensor of type {} to a tensor of type {}",
                from.dtype.torch_name(),
                old.dtype.torch_name()
            )));
        }
        let new = match size {
            None => from,
            Some(s) => {
                let shape = crate::layout::Dims::of(&s);
                let strides = stride.map_or_else(|| shape.strides(), |s| crate::layout::Dims::of(&s));
                from.as_strided(shape, strides, storage_offset)?
            }
        };
        before_write(&old, "set_")?;
        let new = new.counted_as(&old);
        new.bump();
        drop(t.replace_array(new));
        Ok(slf)
    }
    /// Another size for this tensor; its first elements stay. A larger one gets new memory.
    #[pyo3(signature = (*size))]
    fn resize_<'py>(slf: Bound<'py, Self>, size: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, Self>> {
        let size: Vec<i64> = if size.len() == 1 && !size.get_item(0)?.is_instance_of::<pyo3::types::PyInt>() {
            size.get_item(0)?.extract()?
        } else {
            size.extract()?
        };
        let t = slf.get().tensor();
        if t.requires_grad() && mode::grad_enabled() {
            return Err(PyRuntimeError::new_err("cannot resize variables that require grad"));
        }
        let shape = crate::layout::given_size("resize_", &size)?;
        let old = t.array();
        if shape == old.shape {
            return Ok(slf);
        }
        let new = if old.storage().size() >= (old.offset + shape.numel()) * old.dtype.size() {
            old.view(shape, shape.strides(), old.offset)
        } else {
            let new = Array::empty(shape, old.dtype)?;
            let n = old.numel();
            if n > 0 {
                let head = crate::layout::Dims::of(&[n]);
                let flat = crate::kernels::pointwise::cast(&old, old.dtype)?.view(head, head.strides(), 0);
                crate::kernels::pointwise::copy(&new.view(head, head.strides(), 0), &flat)?;
            }
            new.counted_as(&old)
        };
        before_write(&old, "resize_")?;
        new.bump();
        drop(t.replace_array(new));
        Ok(slf)
    }
    fn resize_as_<'py>(slf: Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let shape = tensor_of(other, "resize_as_(): other")?.shape().to_i64();
        let py = slf.py();
        Self::resize_(slf, &PyTuple::new(py, [shape])?)
    }
    fn __hash__(slf: &Bound<'_, Self>) -> isize {
        (slf.as_ptr() as isize) >> 4
    }
    #[getter(T)]
    fn transposed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTensor>> {
        wrap(py, crate::ops::reversed_dims(self.tensor())?)
    }
    #[getter(mT)]
    fn matrix_transposed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTensor>> {
        wrap(py, crate::ops::adjoint(self.tensor())?)
    }
    #[getter(H)]
    fn hermitian<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTensor>> {
        wrap(py, crate::ops::t(self.tensor())?)
    }
    #[getter(mH)]
    fn matrix_hermitian<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTensor>> {
        wrap(py, crate::ops::adjoint(self.tensor())?)
    }
    #[getter]
    fn real<'py>(slf: Bound<'py, Self>) -> Bound<'py, Self> {
        slf
    }
    #[getter]
    fn device(&self) -> super::dtype::PyDevice {
        super::dtype::PyDevice::CPU
    }
    #[getter]
    fn layout<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import(pyo3::intern!(py, "stowgrad._C"))?.getattr(pyo3::intern!(py, "strided"))
    }
    fn is_pinned(&self) -> bool {
        false
    }
    /// The tensor itself: memory shared between processes is not made here.
    fn share_memory_(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }
    fn __repr__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        py.import(pyo3::intern!(py, "stowgrad._tensor_str"))?.getattr(pyo3::intern!(py, "_str"))?.call1((slf,))
    }
    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, protocol: i64) -> PyResult<Bound<'py, PyAny>> {
        pickles(slf, "_reduce_tensor", protocol)
    }
    fn __deepcopy__<'py>(slf: &Bound<'py, Self>, memo: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        pickles(slf, "_deepcopy_tensor", memo)
    }
    #[getter]
    fn name(&self) -> Option<String> {
        None
    }
    /// A tensor of this dtype, from sizes or data, as the classes from before dtypes made it.
    #[pyo3(name = "new", signature = (*args))]
    fn new_of_dtype<'py>(slf: &Bound<'py, Self>, args: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        py.import("stowgrad._legacy")?.getattr("_new")?.call1((PyDType::get(py, slf.get().tensor().dtype()), args))
    }
    /// Always False: what it said is said by `no_grad`.
    #[getter]
    fn volatile(&self) -> bool {
        false
    }
    #[getter]
    fn grad_dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyDType> {
        PyDType::get(py, self.tensor().dtype())
    }
    /// A real tensor itself: it is its own conjugate, its own dense form.
    fn conj(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }
    fn resolve_conj(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }
    fn resolve_neg(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }
    fn to_dense(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }
    fn is_conj(&self) -> bool {
        false
    }
    fn is_neg(&self) -> bool {
        false
    }
    #[getter]
    fn imag(&self) -> PyResult<()> {
        Err(PyRuntimeError::new_err(format!(
            "imag is not implemented for tensors with non-complex dtypes, this one is {}",
            self.tensor().dtype().name()
        )))
    }
}
macro_rules! constants { ($($name:ident)*) => { #[pymethods] impl PyTensor { $(#[getter] fn $name(&self) -> bool { false })* #[getter] fn is_cpu(&self) -> bool { true } } } }
constants! { is_cuda is_sparse is_sparse_csr is_quantized is_meta is_mkldnn is_mps is_nested is_xla is_xpu is_vulkan is_ipu is_mtia is_maia }
function! {
    /// Number of the device a tensor is on: -1, the CPU.
    fn get_device(self_) -> i64;
    { let _ = self_; Ok(-1) }
}
