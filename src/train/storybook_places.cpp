#include "train/storybook_content.h"

namespace mr::train {

// Six kinds of country. Each has places, creatures and people who live there and may help, and
// spots to look into, with what one finds there instead of what one seeks.
const std::string_view kStorybookPlaces = R"(
@rule home
3* {place=sea_place}
3* {place=wood_place}
3* {place=farm_place}
3* {place=hill_place}
3* {place=town_place}
3* {place=river_place}

@table sea_place: in | the | help={helper=sea_folk} | look1={spot1=sea_spot}
  | look2={spot2=sea_spot!spot1} | look3={spot3=sea_spot!spot1!spot2}
in a small village by the sea | the village
on a windy little island | the island
in a white house near the beach | the beach
in a harbor full of painted boats | the harbor
in a lighthouse on the rocks | the shore

@table wood_place: in | the | help={helper=wood_folk} | look1={spot1=wood_spot}
  | look2={spot2=wood_spot!spot1} | look3={spot3=wood_spot!spot1!spot2}
at the edge of a green forest | the forest
in a cottage under the pine trees | the woods
in a hollow between two great oaks | the hollow
in a forest where bluebells grew | the glade
in a treehouse among the birches | the woods

@table farm_place: in | the | help={helper=farm_folk} | look1={spot1=farm_spot}
  | look2={spot2=farm_spot!spot1} | look3={spot3=farm_spot!spot1!spot2}
on a farm with a red barn | the farm
beside a field of golden wheat | the field
on a farm where the roosters sang | the farmyard
next to an orchard of apple trees | the orchard
in a yellow farmhouse with a crooked chimney | the farm

@table hill_place: in | the | help={helper=hill_folk} | look1={spot1=hill_spot}
  | look2={spot2=hill_spot!spot1} | look3={spot3=hill_spot!spot1!spot2}
high up in the mountains | the mountain
in a stone hut on a hill | the hill
in a valley between snowy peaks | the valley
on a hillside full of sheep | the hillside
in a village on top of a hill | the hilltop

@table town_place: in | the | help={helper=town_folk} | look1={spot1=town_spot}
  | look2={spot2=town_spot!spot1} | look3={spot3=town_spot!spot1!spot2}
in a busy little town | the town
above a bakery that smelled of bread | the street
in a town with a tall clock tower | the square
in a narrow house on Lantern Street | the street
next door to a toy shop | the town

@table river_place: in | the | help={helper=river_folk} | look1={spot1=river_spot}
  | look2={spot2=river_spot!spot1} | look3={spot3=river_spot!spot1!spot2}
beside a slow green river | the river
in a mill where the big wheel turned | the mill
in a houseboat on the river | the river
near a pond full of water lilies | the pond
by a brook that never stopped talking | the brook

@table sea_folk: name | they | them | their | doing
turtle | he | him | his | was resting on the warm sand
crab | she | her | her | was polishing her shell
seagull | he | him | his | was sitting on a post
seal | she | her | her | was drying her fur in the sun
pelican | he | him | his | was counting his fish
sailor | he | him | his | was mending a sail
fisherman | he | him | his | was folding his nets
lighthouse keeper | she | her | her | was cleaning her lamp
dolphin | she | her | her | was peeking out of the waves
mermaid | she | her | her | was combing her hair

@table wood_folk: name | they | them | their | doing
owl | she | her | her | was dozing on a branch
hedgehog | he | him | his | was rolling an apple home
deer | she | her | her | was nibbling the clover
woodpecker | he | him | his | was tapping on a trunk
badger | he | him | his | was sweeping his doorstep
woodcutter | he | him | his | was sitting on a log
squirrel | she | her | her | was counting her acorns
toad | he | him | his | was sitting under a mushroom
bear | he | him | his | was looking for honey
fairy | she | her | her | was washing her wings in the dew

@table farm_folk: name | they | them | their | doing
goose | she | her | her | was marching across the yard
horse | he | him | his | was looking over the fence
farmer | he | him | his | was carrying a pail of milk
cow | she | her | her | was chewing slowly in the shade
rooster | he | him | his | was practicing his song
donkey | he | him | his | was resting beside the cart
sheep | she | her | her | was warming her wool in the sun
barn cat | she | her | her | was washing her paws
milkmaid | she | her | her | was humming a tune
scarecrow | he | him | his | was stretching his straw arms

@table hill_folk: name | they | them | their | doing
mountain goat | she | her | her | was standing on a rock
marmot | he | him | his | was sunning his belly
eagle | he | him | his | was circling low
shepherd | he | him | his | was playing a reed pipe
goatherd | she | her | her | was filling her basket
snow hare | she | her | her | was washing her ears
raven | he | him | his | was turning over pebbles
hermit | he | him | his | was boiling his tea
weaver | she | her | her | was hanging up her wool
giant | he | him | his | was resting his feet in a stream

@table town_folk: name | they | them | their | doing
baker | he | him | his | was dusting off his apron
pigeon | she | her | her | was picking up crumbs
alley cat | he | him | his | was stretching on a wall
mail carrier | she | her | her | was sorting her letters
clockmaker | he | him | his | was winding a watch
teacher | she | her | her | was reading on a bench
tailor | he | him | his | was sewing on a button
flower seller | she | her | her | was tying up roses
street sweeper | he | him | his | was leaning on his broom
librarian | she | her | her | was carrying seven books

@table river_folk: name | they | them | their | doing
otter | he | him | his | was floating on his back
frog | she | her | her | was sitting on a lily pad
heron | he | him | his | was standing on one leg
swan | she | her | her | was gliding along the bank
beaver | he | him | his | was patting down some mud
miller | he | him | his | was shaking the flour from his hat
ferryman | he | him | his | was tying up his boat
dragonfly | she | her | her | was resting on a reed
old trout | she | her | her | was blowing bubbles
water rat | he | him | his | was painting his little boat

@table sea_spot: at | only
under an upturned boat | a sleepy crab
behind the lobster pots | a tangle of rope
in a tide pool | three pink shrimps
inside a big seashell | the sound of the waves
under the old pier | a pile of driftwood
in a heap of nets | one lost boot
beside the sandcastle | a row of shells
between two rocks | a purple starfish
at the end of the jetty | a grumpy gull
in the tall beach grass | a nest with two eggs

@table wood_spot: at | only
under the fern leaves | a shiny beetle
inside a hollow log | a family of mice
behind the mossy stone | a pair of snails
at the foot of the oldest oak | a heap of acorns
in the blackberry bushes | a lot of thorns
under a red mushroom | a tiny puddle
in a pile of leaves | a yawning hedgehog
beside the fallen pine | a trail of ants
in an empty nest | two blue feathers
under the holly bush | a forgotten pinecone

@table farm_spot: at | only
behind the haystack | a hen on her eggs
under the wagon | a sleeping dog
in the feed bin | a handful of corn
inside the old milk churn | a spider and her web
in the pumpkin patch | eleven pumpkins
under the porch | a rusty horseshoe
in the hayloft | a swallow's nest
behind the water trough | a muddy boot
in the tool shed | a broken rake
beside the pigsty | four pink piglets

@table hill_spot: at | only
behind the waterfall | a patch of wet moss
in a small cave | a yawning bat
under the stone bridge | a trickle of water
in the heather | a humming bee
beside the old wall | a lizard in the sun
inside the sheep shed | a bundle of wool
at the top of the path | a fine view
under a leaning rock | some old leaves
in the snowy ditch | a few rabbit tracks
between the thistles | a clump of clover

@table town_spot: at | only
under the park bench | an old newspaper
behind the fountain | a wet pigeon
in the flowerpots | some muddy daisies
beside the lamppost | a lost glove
under the market stall | a squashed tomato
at the bottom of the stairs | a ball of dust
in the baker's basket | three warm rolls
behind the school gate | a piece of chalk
on the windowsill | a sleepy cat
inside the old mailbox | a very late letter

@table river_spot: at | only
under the little bridge | a curious fish
in the reeds | a duck with six eggs
beside the water wheel | a cloud of spray
behind the willow tree | a broken paddle
on the muddy bank | some webbed footprints
under a lily pad | a shy tadpole
inside the rowboat | a puddle of rain
between the stepping stones | a smooth gray pebble
in the tall rushes | a humming dragonfly
at the end of the dock | a tangled fishing line
)";

}  // namespace mr::train
