/* Meshes: ranks laid out as a grid, with a group along each dimension.
 *
 * What all views of one grid share is its `layout`: the axes, as created, the ranks in row-major order, where this
 * process stands, and every dimension that has a group. A dimension is one axis, or several that were flattened to one.
 * A comm_mesh is a view: some of the dimensions, with the coordinates along all other axes fixed to this process's own.
 * The axes of a view's dimensions ascend, so that flattening a view is the union of its axes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counter.h"

#include "group.h"

enum { AXES_MAX = 32 };

struct dimension {
    char *name;    /* NULL: it has none */
    uint32_t axes; /* bit a: axis a belongs to it; the lowest axis is the outermost */
    int32_t size;
    comm_group *group;
    int is_owned; /* made by us, not given by comm_mesh_from_groups */
    struct dimension *next;
};

struct layout {
    atomic_int references; /* views */
    int32_t axis_count;
    int32_t shape[AXES_MAX], own[AXES_MAX]; /* own: this process's coordinates */
    int32_t total;
    int32_t *ranks;       /* [total] of the world, row-major */
    pthread_mutex_t lock; /* guards what follows; a dimension, once in the list, does not change */
    struct dimension *dimensions;
    struct dimension **last;
};

struct comm_mesh {
    struct layout *layout;
    int32_t count;
    struct dimension *dimensions[AXES_MAX];
};

/* ---- Memory ---- */

static comm_status dimension_destroy(struct dimension *d)
{
    comm_status status = COMM_OK;
    if (d->group) {
        comm_group *group = d->group;
        if (d->is_owned)
            status = comm__group_close(group);
        comm__group_unref(group);
    }
    free(d->name);
    free(d);
    return status;
}

static comm_status layout_release(struct layout *layout)
{
    comm_status first = COMM_OK;
    if (!layout || count_down(&layout->references) > 0)
        return COMM_OK;
    while (layout->dimensions) {
        struct dimension *d = layout->dimensions;
        layout->dimensions = d->next;
        comm_status status = dimension_destroy(d);
        if (first == COMM_OK)
            first = status;
    }
    pthread_mutex_destroy(&layout->lock);
    free(layout->ranks);
    free(layout);
    return first;
}

static struct layout *layout_create(const int32_t *shape, size_t axis_count, int32_t total)
{
    struct layout *layout = calloc(1, sizeof *layout);
    if (!layout)
        return NULL;
    layout->ranks = malloc((size_t)total * sizeof *layout->ranks);
    if (!layout->ranks) {
        free(layout);
        return NULL;
    }
    atomic_init(&layout->references, 1);
    pthread_mutex_init(&layout->lock, NULL);
    layout->last = &layout->dimensions;
    layout->axis_count = (int32_t)axis_count;
    memcpy(layout->shape, shape, axis_count * sizeof *shape);
    layout->total = total;
    return layout;
}

/* Takes `group` with a memory reference of its own: a group that is closed too early must not leave a dangling
 * pointer. */
static struct dimension *dimension_create(const char *name, uint32_t axes, comm_group *group, int is_owned)
{
    struct dimension *d = calloc(1, sizeof *d);
    if (d && name && !(d->name = strdup(name))) {
        free(d);
        d = NULL;
    }
    if (!d)
        return NULL;
    comm__group_ref(group);
    d->axes = axes;
    d->group = group;
    d->size = group->size;
    d->is_owned = is_owned;
    return d;
}

/* Holds the layout's lock, or is alone with it. */
static void append(struct layout *layout, struct dimension *d)
{
    *layout->last = d;
    layout->last = &d->next;
}

static comm_status no_memory(const char *call)
{
    return comm__fail(COMM_ERR_NO_MEMORY, "%s", call);
}

/* A view of its own reference to the layout. */
static comm_status view_create(struct layout *layout, struct dimension *const *dimensions, int32_t count,
                               const char *call, comm_mesh **ret_mesh)
{
    comm_mesh *mesh = calloc(1, sizeof *mesh);
    if (!mesh)
        return no_memory(call);
    atomic_fetch_add(&layout->references, 1);
    mesh->layout = layout;
    mesh->count = count;
    memcpy(mesh->dimensions, dimensions, (size_t)count * sizeof(struct dimension *));
    *ret_mesh = mesh;
    return COMM_OK;
}

comm_status comm_mesh_destroy(comm_mesh *mesh)
{
    if (!mesh)
        return COMM_OK;
    comm_status status = comm__refuse_in_callback("comm_mesh_destroy");
    if (status != COMM_OK)
        return status;
    struct layout *layout = mesh->layout;
    free(mesh);
    return layout_release(layout);
}

/* ---- Coordinates ---- */

/* The coordinates of place `index` of a grid in row-major order. */
static void unfold(const int32_t *shape, int32_t axis_count, int32_t index, int32_t *coordinates)
{
    for (int32_t a = axis_count - 1; a >= 0; a--) {
        coordinates[a] = index % shape[a];
        index /= shape[a];
    }
}

/* The world rank at `coordinates` along all axes of the layout. */
static int32_t rank_at(const struct layout *layout, const int32_t *coordinates)
{
    int32_t index = 0;
    for (int32_t a = 0; a < layout->axis_count; a++)
        index = index * layout->shape[a] + coordinates[a];
    return layout->ranks[index];
}

/* Set the axes of `d` from a coordinate along it. */
static void unfold_dimension(const struct layout *layout, const struct dimension *d, int32_t coordinate, int32_t *axes)
{
    for (int32_t a = layout->axis_count - 1; a >= 0; a--)
        if (d->axes >> a & 1) {
            axes[a] = coordinate % layout->shape[a];
            coordinate /= layout->shape[a];
        }
}

static int32_t fold_dimension(const struct layout *layout, const struct dimension *d, const int32_t *axes)
{
    int32_t coordinate = 0;
    for (int32_t a = 0; a < layout->axis_count; a++)
        if (d->axes >> a & 1)
            coordinate = coordinate * layout->shape[a] + axes[a];
    return coordinate;
}

/* The world ranks along some axes, through this process; room for their product. */
static int32_t ranks_along(const struct layout *layout, uint32_t axes, int32_t *ret_ranks)
{
    struct dimension line = { .axes = axes };
    int32_t count = 1, at[AXES_MAX];
    for (int32_t a = 0; a < layout->axis_count; a++)
        count *= axes >> a & 1 ? layout->shape[a] : 1;
    memcpy(at, layout->own, sizeof at);
    for (int32_t i = 0; i < count; i++) {
        unfold_dimension(layout, &line, i, at);
        ret_ranks[i] = rank_at(layout, at);
    }
    return count;
}

/* Where this process stands; 0 if it does not. */
static int find_own(struct layout *layout, int32_t world_rank)
{
    for (int32_t i = 0; i < layout->total; i++)
        if (layout->ranks[i] == world_rank) {
            unfold(layout->shape, layout->axis_count, i, layout->own);
            return 1;
        }
    return 0;
}

/* ---- Checks ---- */

static comm_status check_names(const char *call, const char *const *names, size_t count)
{
    for (size_t i = 0; names && i < count; i++) {
        if (!names[i] || !*names[i])
            return comm__fail(COMM_ERR_INVALID,
                              "%s: dimension %zu has %s; give every dimension a name, or none "
                              "(names = NULL)",
                              call, i, names[i] ? "an empty name" : "a NULL name");
        comm_status status = comm__check_name(call, "the dimension's name", names[i]);
        if (status != COMM_OK)
            return status;
        for (size_t j = 0; j < i; j++)
            if (strcmp(names[i], names[j]) == 0)
                return comm__fail(COMM_ERR_INVALID, "%s: dimensions %zu and %zu are both called '%s'", call, j, i,
                                  names[i]);
    }
    return COMM_OK;
}

/* "2 x 3 x 4" */
static void write_shape(const int32_t *shape, size_t count, char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count && used < capacity; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%d", i ? " x " : "", shape[i]);
}

/* The product of a shape must be `places`. */
static comm_status check_shape(const char *call, const int32_t *shape, size_t count, int32_t places)
{
    char text[400];
    int64_t product = 1;
    if (!shape || count == 0 || count > AXES_MAX)
        return comm__fail(COMM_ERR_INVALID, "%s: the shape has %zu dimensions; a mesh has 1 to %d", call,
                          shape ? count : 0, AXES_MAX);
    write_shape(shape, count, text, sizeof text);
    for (size_t i = 0; i < count; i++) {
        if (shape[i] < 1)
            return comm__fail(COMM_ERR_INVALID, "%s: dimension %zu of the shape %s is %d; each must be at least 1",
                              call, i, text, shape[i]);
        product = product > INT32_MAX ? product : product * shape[i];
    }
    if (product != places)
        return comm__fail(COMM_ERR_INVALID, "%s: the shape %s has %s%" PRId64 " places, but there are %d ranks", call,
                          text, product > INT32_MAX ? "more than " : "", product > INT32_MAX ? INT32_MAX : product,
                          places);
    return COMM_OK;
}

static comm_status check_mesh(const comm_mesh *mesh, const char *call, const void *result)
{
    if (!mesh || !result)
        return comm__fail(COMM_ERR_INVALID, "%s: %s is NULL", call, mesh ? "the result's pointer" : "the mesh");
    return COMM_OK;
}

/* ---- Making ---- */

static comm_status make_group(comm_group *parent, const int32_t *ranks, int32_t count, const char *name,
                              const comm_group_options *given, comm_group **ret_group)
{
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    char description[sizeof "mesh_" + NAME_BYTES_MAX], full[2 * GROUP_NAME_BYTES];
    if (given)
        memcpy(&options, given, given->struct_bytes < sizeof options ? given->struct_bytes : sizeof options);
    options.struct_bytes = sizeof options;
    snprintf(description, sizeof description, "mesh_%s", name);
    if (!options.description)
        options.description = description;
    if (options.name) {
        snprintf(full, sizeof full, "%s.%s", options.name, name);
        options.name = full;
    }
    return comm_group_create(parent, ranks, (size_t)count, &options, ret_group);
}

/* The group along `axes`. `world_ranks` of the layout are turned into ranks of the parent. */
static comm_status add_dimension(struct layout *layout, comm_group *parent, uint32_t axes, const char *name,
                                 const char *label, const comm_group_options *options, struct dimension **ret_dimension)
{
    int32_t *ranks = malloc((size_t)layout->total * sizeof *ranks);
    if (!ranks)
        return no_memory(label);
    int32_t count = ranks_along(layout, axes, ranks);
    comm_status status = COMM_OK;
    for (int32_t i = 0; status == COMM_OK && i < count; i++)
        status = comm_group_rank_of(parent, ranks[i], &ranks[i]);
    comm_group *group = NULL;
    if (status == COMM_OK)
        status = make_group(parent, ranks, count, label, options, &group);
    free(ranks);
    if (status != COMM_OK)
        return status;
    struct dimension *d = dimension_create(name, axes, group, 1);
    if (!d) {
        comm__group_close(group);
        return no_memory(label);
    }
    append(layout, d);
    *ret_dimension = d;
    return COMM_OK;
}

static comm_status check_ranks(const comm_group *parent, const char *call, const int32_t *ranks, size_t count)
{
    uint8_t *seen = calloc((size_t)parent->size, 1);
    if (!seen)
        return no_memory(call);
    comm_status status = COMM_OK;
    for (size_t i = 0; status == COMM_OK && i < count; i++)
        if (ranks[i] < 0 || ranks[i] >= parent->size)
            status = comm__fail(COMM_ERR_INVALID, "%s from '%s': ranks[%zu] is %d; the ranks are 0 to %d", call,
                                parent->name, i, ranks[i], parent->size - 1);
        else if (seen[ranks[i]]++)
            status = comm__fail(COMM_ERR_INVALID, "%s from '%s': rank %d is in the mesh twice", call, parent->name,
                                ranks[i]);
    free(seen);
    return status;
}

/* The groups are called "grid.dp": that must not be too long either. */
static comm_status check_group_names(const char *call, const comm_group_options *options, const char *const *names,
                                     size_t count)
{
    char full[2 * GROUP_NAME_BYTES];
    if (!options || options->struct_bytes < offsetof(comm_group_options, name) + sizeof options->name || !options->name)
        return COMM_OK;
    comm_status status = comm__check_name(call, "options->name", options->name);
    for (size_t i = 0; status == COMM_OK && i < count; i++) {
        snprintf(full, sizeof full, "%s.%s", options->name, names ? names[i] : "00");
        status = comm__check_name(call, "a group's name", full);
    }
    return status;
}

static comm_status check_create(comm_group *parent, const int32_t *ranks, size_t rank_count, const int32_t *shape,
                                const char *const *names, size_t dims, const comm_group_options *options,
                                comm_mesh **ret_mesh)
{
    static const char call[] = "comm_mesh_create";
    if (!parent || !ret_mesh)
        return comm__fail(COMM_ERR_INVALID, "%s: %s is NULL", call, parent ? "ret_mesh" : "the group");
    comm_status status = comm__group_usable(parent, call);
    if (status == COMM_OK)
        status = comm__check_struct(options, sizeof *options, "comm_group_options");
    if (status == COMM_OK && (ranks != NULL) != (rank_count != 0))
        status = comm__fail(COMM_ERR_INVALID, "%s: ranks is %s, but rank_count is %zu", call, ranks ? "given" : "NULL",
                            rank_count);
    if (status == COMM_OK && rank_count > (size_t)parent->size)
        status = comm__fail(COMM_ERR_INVALID, "%s from '%s': %zu ranks are listed, but the group has %d", call,
                            parent->name, rank_count, parent->size);
    if (status == COMM_OK)
        status = check_shape(call, shape, dims, ranks ? (int32_t)rank_count : parent->size);
    if (status == COMM_OK)
        status = check_names(call, names, dims);
    if (status == COMM_OK)
        status = check_group_names(call, options, names, dims);
    if (status == COMM_OK && ranks)
        status = check_ranks(parent, call, ranks, rank_count);
    return status;
}

comm_status comm_mesh_create(comm_group *parent, const int32_t *ranks, size_t rank_count, const int32_t *shape,
                             const char *const *names, size_t dims, const comm_group_options *options,
                             comm_mesh **ret_mesh)
{
    comm_status status = check_create(parent, ranks, rank_count, shape, names, dims, options, ret_mesh);
    if (status != COMM_OK)
        return status;
    struct dimension *dimensions[AXES_MAX];
    struct layout *layout = layout_create(shape, dims, ranks ? (int32_t)rank_count : parent->size);
    if (!layout)
        return no_memory("comm_mesh_create");
    for (int32_t i = 0; i < layout->total; i++)
        layout->ranks[i] = parent->world_ranks[ranks ? ranks[i] : i];
    comm_mesh *mesh = NULL;
    int is_member = find_own(layout, parent->world_ranks[parent->rank]);
    for (size_t i = 0; status == COMM_OK && is_member && i < dims; i++) {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        status = add_dimension(layout, parent, 1u << i, names ? names[i] : NULL, names ? names[i] : number, options,
                               &dimensions[i]);
    }
    if (status == COMM_OK && is_member)
        status = view_create(layout, dimensions, (int32_t)dims, "comm_mesh_create", &mesh);
    layout_release(layout);
    if (status == COMM_OK)
        *ret_mesh = mesh;
    return status;
}

/* Group i must consist of the ranks along axis i through this process, in that order. */
static comm_status check_group_ranks(const struct layout *layout, comm_group *const *groups)
{
    int32_t *ranks = malloc((size_t)layout->total * sizeof *ranks);
    if (!ranks)
        return no_memory("comm_mesh_from_groups");
    comm_status status = COMM_OK;
    for (int32_t i = 0; status == COMM_OK && i < layout->axis_count; i++) {
        int32_t count = ranks_along(layout, 1u << i, ranks);
        for (int32_t r = 0; status == COMM_OK && r < count; r++)
            if (groups[i]->world_ranks[r] != ranks[r])
                status =
                    comm__fail(COMM_ERR_INVALID,
                               "comm_mesh_from_groups: rank %d of group '%s' is world rank %d, but along dimension "
                               "%d of `ranks` it is %d",
                               r, groups[i]->name, groups[i]->world_ranks[r], i, ranks[r]);
    }
    free(ranks);
    return status;
}

static comm_status check_groups(comm_group *const *groups, const char *const *names, size_t dims, const int32_t *ranks,
                                comm_mesh **ret_mesh)
{
    static const char call[] = "comm_mesh_from_groups";
    if (!groups || !ret_mesh || dims == 0 || dims > AXES_MAX)
        return comm__fail(COMM_ERR_INVALID, "%s: %s", call,
                          !groups     ? "groups is NULL"
                          : !ret_mesh ? "ret_mesh is NULL"
                                      : "a mesh has 1 to 32 dimensions");
    for (size_t i = 0; i < dims; i++) {
        comm_status status = comm__group_usable(groups[i], call);
        if (status != COMM_OK)
            return comm__fail_while(status, "%s: group %zu", call, i);
        if (groups[i]->world != groups[0]->world)
            return comm__fail(COMM_ERR_INVALID, "%s: groups '%s' and '%s' are not of one world", call, groups[0]->name,
                              groups[i]->name);
    }
    if (!ranks && dims > 1)
        return comm__fail(COMM_ERR_INVALID, "%s: ranks is NULL; with %zu groups it must list the ranks of the mesh",
                          call, dims);
    return check_names(call, names, dims);
}

static comm_status add_given(struct layout *layout, comm_group *const *groups, const char *const *names, size_t dims,
                             struct dimension **dimensions)
{
    for (size_t i = 0; i < dims; i++) {
        dimensions[i] = dimension_create(names ? names[i] : NULL, 1u << i, groups[i], 0);
        if (!dimensions[i])
            return no_memory("comm_mesh_from_groups");
        append(layout, dimensions[i]);
    }
    return COMM_OK;
}

comm_status comm_mesh_from_groups(comm_group *const *groups, const char *const *names, size_t dims,
                                  const int32_t *ranks, comm_mesh **ret_mesh)
{
    comm_status status = check_groups(groups, names, dims, ranks, ret_mesh);
    if (status != COMM_OK)
        return status;
    const comm_group *root = groups[0]->world->root;
    int32_t shape[AXES_MAX];
    int64_t total = 1;
    for (size_t i = 0; i < dims; i++) {
        shape[i] = groups[i]->size;
        total = total > root->size ? total : total * shape[i];
    }
    if (total > root->size) {
        char text[400];
        write_shape(shape, dims, text, sizeof text);
        return comm__fail(COMM_ERR_INVALID,
                          "comm_mesh_from_groups: the groups make a mesh of %s, but the world has %d "
                          "ranks",
                          text, root->size);
    }
    struct dimension *dimensions[AXES_MAX];
    struct layout *layout = layout_create(shape, dims, (int32_t)total);
    if (!layout)
        return no_memory("comm_mesh_from_groups");
    memcpy(layout->ranks, ranks ? ranks : groups[0]->world_ranks, (size_t)total * sizeof *ranks);
    status = check_ranks(root, "comm_mesh_from_groups", layout->ranks, (size_t)total);
    if (status == COMM_OK && !find_own(layout, root->world_ranks[root->rank]))
        status = comm__fail(COMM_ERR_INVALID, "comm_mesh_from_groups: this process, world rank %d, is not in `ranks`",
                            root->rank);
    if (status == COMM_OK)
        status = check_group_ranks(layout, groups);
    if (status == COMM_OK)
        status = add_given(layout, groups, names, dims, dimensions);
    if (status == COMM_OK)
        status = view_create(layout, dimensions, (int32_t)dims, "comm_mesh_from_groups", ret_mesh);
    layout_release(layout);
    return status;
}

/* ---- Views ---- */

/* All names that a view can be asked for, for an error. */
static void write_names(const comm_mesh *mesh, char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < mesh->count && used < capacity; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", i ? ", " : "",
                                 mesh->dimensions[i]->name ? mesh->dimensions[i]->name : "(none)");
}

static uint32_t axes_of(const comm_mesh *mesh)
{
    uint32_t axes = 0;
    for (int32_t i = 0; i < mesh->count; i++)
        axes |= mesh->dimensions[i]->axes;
    return axes;
}

/* A dimension of the view, or one flattened from axes of the view; NULL if there is none of that name. */
static struct dimension *find_dimension(const comm_mesh *mesh, const char *name)
{
    for (int32_t i = 0; i < mesh->count; i++)
        if (mesh->dimensions[i]->name && strcmp(mesh->dimensions[i]->name, name) == 0)
            return mesh->dimensions[i];
    struct layout *layout = mesh->layout;
    uint32_t axes = axes_of(mesh);
    pthread_mutex_lock(&layout->lock);
    struct dimension *d = layout->dimensions;
    while (d && (!d->name || strcmp(d->name, name) != 0 || (d->axes & ~axes)))
        d = d->next;
    pthread_mutex_unlock(&layout->lock);
    return d;
}

comm_status comm_mesh_sub(comm_mesh *mesh, const char *const *names, size_t count, comm_mesh **ret_mesh)
{
    comm_status status = check_mesh(mesh, "comm_mesh_sub", ret_mesh);
    if (status == COMM_OK && (!names || count == 0 || count > AXES_MAX))
        status = comm__fail(COMM_ERR_INVALID, "comm_mesh_sub: give 1 to 32 names");
    if (status == COMM_OK)
        status = check_names("comm_mesh_sub", names, count);
    if (status != COMM_OK)
        return status;
    struct dimension *dimensions[AXES_MAX];
    for (size_t i = 0; i < count; i++) {
        char there[300];
        write_names(mesh, there, sizeof there);
        dimensions[i] = find_dimension(mesh, names[i]);
        if (!dimensions[i])
            return comm__fail(COMM_ERR_NOT_FOUND,
                              "comm_mesh_sub: the mesh has no dimension '%s'; its dimensions are: %s", names[i], there);
        /* The lowest axis must be above the highest one of the dimension before. */
        if (i > 0 && (dimensions[i]->axes & -dimensions[i]->axes) <= dimensions[i - 1]->axes)
            return comm__fail(COMM_ERR_INVALID,
                              "comm_mesh_sub: '%s' comes after '%s', but not in the mesh, or they overlap; name the "
                              "dimensions in the mesh's order: %s",
                              names[i], names[i - 1], there);
    }
    return view_create(mesh->layout, dimensions, (int32_t)count, "comm_mesh_sub", ret_mesh);
}

static comm_status join_names(const comm_mesh *mesh, char **ret_name)
{
    size_t bytes = 1;
    for (int32_t i = 0; i < mesh->count; i++) {
        if (!mesh->dimensions[i]->name)
            return comm__fail(COMM_ERR_INVALID, "comm_mesh_flatten: the mesh has no names to make one of; give a name");
        bytes += strlen(mesh->dimensions[i]->name) + 1;
    }
    char *name = calloc(1, bytes);
    if (!name)
        return no_memory("comm_mesh_flatten");
    for (int32_t i = 0; i < mesh->count; i++) {
        strcat(name, i ? "_" : "");
        strcat(name, mesh->dimensions[i]->name);
    }
    *ret_name = name;
    return COMM_OK;
}

/* A new group along the view's axes, made from the world: the mesh's parent may be closed by now. Holds the lock. */
static comm_status flatten(comm_mesh *mesh, const char *name, const comm_group_options *given,
                           struct dimension **ret_dimension)
{
    comm_group *like = mesh->dimensions[0]->group;
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    if (given)
        memcpy(&options, given, given->struct_bytes < sizeof options ? given->struct_bytes : sizeof options);
    options.struct_bytes = sizeof options;
    if (!options.backend)
        options.backend = like->backend_asked;
    if (!options.timeout_ms)
        options.timeout_ms = comm_group_timeout(like);
    if (!options.device)
        options.device = like->device;
    return add_dimension(mesh->layout, like->world->root, axes_of(mesh), name, name, &options, ret_dimension);
}

static comm_status flatten_as(comm_mesh *mesh, const char *name, const comm_group_options *options,
                              comm_mesh **ret_mesh)
{
    struct layout *layout = mesh->layout;
    struct dimension *d = mesh->count == 1 ? mesh->dimensions[0] : NULL;
    if (d && d->name && strcmp(d->name, name) == 0) /* already flat, and called so */
        return view_create(layout, &d, 1, "comm_mesh_flatten", ret_mesh);
    comm_status status = COMM_OK;
    comm__callbacks_defer(); /* opening a group may complete works of others, whose callbacks may ask this mesh */
    pthread_mutex_lock(&layout->lock);
    for (d = layout->dimensions; d && (!d->name || strcmp(d->name, name) != 0);)
        d = d->next;
    if (d && d->axes != axes_of(mesh))
        status = comm__fail(COMM_ERR_INVALID, "comm_mesh_flatten: another dimension of this mesh is called '%s'", name);
    else if (!d)
        status = flatten(mesh, name, options, &d);
    pthread_mutex_unlock(&layout->lock);
    comm__callbacks_run();
    return status == COMM_OK ? view_create(layout, &d, 1, "comm_mesh_flatten", ret_mesh) : status;
}

/* A mesh of groups that were given keeps them, but not their world, which ends with the last one that is closed. */
static comm_status check_open(comm_group *group)
{
    comm_status status = comm__group_usable(group, "comm_mesh_flatten");
    if (status == COMM_OK && atomic_load(&group->closing))
        status = comm__fail(COMM_ERR_INVALID, "comm_mesh_flatten: the mesh's group '%s' has been closed", group->name);
    return status;
}

comm_status comm_mesh_flatten(comm_mesh *mesh, const char *name, const comm_group_options *options,
                              comm_mesh **ret_mesh)
{
    comm_status status = check_mesh(mesh, "comm_mesh_flatten", ret_mesh);
    if (status == COMM_OK)
        status = comm__check_struct(options, sizeof *options, "comm_group_options");
    if (status == COMM_OK)
        status = check_open(mesh->dimensions[0]->group);
    char *joined = NULL;
    if (status == COMM_OK && (!name || !*name))
        status = join_names(mesh, &joined);
    if (status == COMM_OK)
        name = joined ? joined : name;
    if (status == COMM_OK)
        status = comm__check_name("comm_mesh_flatten", joined ? "the joined name" : "the name", name);
    if (status == COMM_OK)
        status = check_group_names("comm_mesh_flatten", options, &name, 1);
    if (status == COMM_OK)
        status = flatten_as(mesh, name, options, ret_mesh);
    free(joined);
    return status;
}

/* ---- Questions ---- */

static int has_dimension(const comm_mesh *mesh, int32_t dim)
{
    return mesh && dim >= 0 && dim < mesh->count;
}

static comm_status check_dimension(const comm_mesh *mesh, int32_t dim, const char *call, const void *result)
{
    comm_status status = check_mesh(mesh, call, result);
    if (status == COMM_OK && !has_dimension(mesh, dim))
        status = comm__fail(COMM_ERR_NOT_FOUND, "%s: there is no dimension %d; the mesh has 0 to %d", call, dim,
                            mesh->count - 1);
    return status;
}

int32_t comm_mesh_dims(const comm_mesh *mesh)
{
    return mesh ? mesh->count : -1;
}

int32_t comm_mesh_size(const comm_mesh *mesh, int32_t dim)
{
    return has_dimension(mesh, dim) ? mesh->dimensions[dim]->size : -1;
}

const char *comm_mesh_dim_name(const comm_mesh *mesh, int32_t dim)
{
    return has_dimension(mesh, dim) && mesh->dimensions[dim]->name ? mesh->dimensions[dim]->name : "";
}

comm_status comm_mesh_dim(const comm_mesh *mesh, const char *name, int32_t *ret_dim)
{
    comm_status status = check_mesh(mesh, "comm_mesh_dim", ret_dim);
    if (status == COMM_OK && !name)
        status = comm__fail(COMM_ERR_INVALID, "comm_mesh_dim: the name is NULL");
    if (status != COMM_OK)
        return status;
    for (int32_t i = 0; i < mesh->count; i++)
        if (mesh->dimensions[i]->name && strcmp(mesh->dimensions[i]->name, name) == 0) {
            *ret_dim = i;
            return COMM_OK;
        }
    char there[300];
    write_names(mesh, there, sizeof there);
    return comm__fail(COMM_ERR_NOT_FOUND, "comm_mesh_dim: the mesh has no dimension '%s'; its dimensions are: %s", name,
                      there);
}

comm_status comm_mesh_group(const comm_mesh *mesh, int32_t dim, comm_group **ret_group)
{
    comm_status status = check_dimension(mesh, dim, "comm_mesh_group", ret_group);
    if (status == COMM_OK)
        *ret_group = mesh->dimensions[dim]->group;
    return status;
}

comm_status comm_mesh_groups(const comm_mesh *mesh, comm_group **ret_groups)
{
    comm_status status = check_mesh(mesh, "comm_mesh_groups", ret_groups);
    for (int32_t i = 0; status == COMM_OK && i < mesh->count; i++)
        ret_groups[i] = mesh->dimensions[i]->group;
    return status;
}

int32_t comm_mesh_local_rank(const comm_mesh *mesh, int32_t dim)
{
    return has_dimension(mesh, dim) ? fold_dimension(mesh->layout, mesh->dimensions[dim], mesh->layout->own) : -1;
}

comm_status comm_mesh_coordinates(const comm_mesh *mesh, int32_t *ret_coordinates)
{
    comm_status status = check_mesh(mesh, "comm_mesh_coordinates", ret_coordinates);
    for (int32_t i = 0; status == COMM_OK && i < mesh->count; i++)
        ret_coordinates[i] = comm_mesh_local_rank(mesh, i);
    return status;
}

/* Is this place, by its coordinates along all axes, in the view? */
static int in_view(const comm_mesh *mesh, const int32_t *axes)
{
    uint32_t free_axes = axes_of(mesh);
    for (int32_t a = 0; a < mesh->layout->axis_count; a++)
        if (!(free_axes >> a & 1) && axes[a] != mesh->layout->own[a])
            return 0;
    return 1;
}

comm_status comm_mesh_coordinates_of(const comm_mesh *mesh, int32_t world_rank, int32_t *ret_coordinates)
{
    comm_status status = check_mesh(mesh, "comm_mesh_coordinates_of", ret_coordinates);
    if (status != COMM_OK)
        return status;
    const struct layout *layout = mesh->layout;
    int32_t axes[AXES_MAX];
    for (int32_t i = 0; i < layout->total; i++) {
        if (layout->ranks[i] != world_rank)
            continue;
        unfold(layout->shape, layout->axis_count, i, axes);
        if (!in_view(mesh, axes))
            break;
        for (int32_t d = 0; d < mesh->count; d++)
            ret_coordinates[d] = fold_dimension(layout, mesh->dimensions[d], axes);
        return COMM_OK;
    }
    return comm__fail(COMM_ERR_NOT_FOUND, "comm_mesh_coordinates_of: world rank %d is not in this mesh", world_rank);
}

comm_status comm_mesh_rank_at(const comm_mesh *mesh, const int32_t *coordinates, int32_t *ret_world_rank)
{
    comm_status status = check_mesh(mesh, "comm_mesh_rank_at", ret_world_rank);
    if (status == COMM_OK && !coordinates)
        status = comm__fail(COMM_ERR_INVALID, "comm_mesh_rank_at: coordinates is NULL");
    if (status != COMM_OK)
        return status;
    int32_t axes[AXES_MAX];
    memcpy(axes, mesh->layout->own, sizeof axes);
    for (int32_t i = 0; i < mesh->count; i++) {
        const struct dimension *d = mesh->dimensions[i];
        if (coordinates[i] < 0 || coordinates[i] >= d->size)
            return comm__fail(COMM_ERR_NOT_FOUND,
                              "comm_mesh_rank_at: coordinate %d along dimension %d%s%s is not in 0 to %d",
                              coordinates[i], i, d->name ? " " : "", d->name ? d->name : "", d->size - 1);
        unfold_dimension(mesh->layout, d, coordinates[i], axes);
    }
    *ret_world_rank = rank_at(mesh->layout, axes);
    return COMM_OK;
}

int32_t comm_mesh_rank_count(const comm_mesh *mesh)
{
    int32_t count = mesh ? 1 : -1;
    for (int32_t i = 0; mesh && i < mesh->count; i++)
        count *= mesh->dimensions[i]->size;
    return count;
}

comm_status comm_mesh_ranks(const comm_mesh *mesh, int32_t *ret_world_ranks)
{
    comm_status status = check_mesh(mesh, "comm_mesh_ranks", ret_world_ranks);
    if (status == COMM_OK)
        ranks_along(mesh->layout, axes_of(mesh), ret_world_ranks);
    return status;
}
