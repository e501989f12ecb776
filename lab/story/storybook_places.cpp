#include "lab/story/storybook_content.h"

namespace mr::story {

// Six kinds of country. Each has places, creatures and people who live there and may help, and
// spots to search, with the things found there instead of the one that is missing.
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
in a hut with a roof of whale bones | the cove
in a fishing boat turned upside down | the harbor
on a cliff where the gulls nested | the cliff
behind the dunes | the dunes

@table wood_place: in | the | help={helper=wood_folk} | look1={spot1=wood_spot}
  | look2={spot2=wood_spot!spot1} | look3={spot3=wood_spot!spot1!spot2}
at the edge of a green forest | the forest
in a cottage under the pine trees | the woods
in a hollow between two great oaks | the hollow
in a forest where bluebells grew | the glade
in a treehouse among the birches | the woods
in a hut at the end of a mossy path | the woods
under the roots of a giant beech | the grove
beside a spring in the deep forest | the spring
in a log cabin with a green door | the clearing

@table farm_place: in | the | help={helper=farm_folk} | look1={spot1=farm_spot}
  | look2={spot2=farm_spot!spot1} | look3={spot3=farm_spot!spot1!spot2}
on a farm with a red barn | the farm
beside a field of golden wheat | the field
on a farm where the roosters sang | the farmyard
next to an orchard of apple trees | the orchard
in a yellow farmhouse with a crooked chimney | the farm
in a windmill with four white sails | the windmill
behind a hedge of wild roses | the meadow
in a vineyard on a gentle slope | the vineyard
on a farm at the end of a dusty road | the farm

@table hill_place: in | the | help={helper=hill_folk} | look1={spot1=hill_spot}
  | look2={spot2=hill_spot!spot1} | look3={spot3=hill_spot!spot1!spot2}
high up in the mountains | the mountain
in a stone hut on a hill | the hill
in a valley between snowy peaks | the valley
on a hillside full of sheep | the hillside
in a village on top of a hill | the hilltop
beside a lake as clear as glass | the lake
in a hut at the edge of the snow | the slope
on a ridge where the wind never slept | the ridge
near a pass that only goats knew | the pass

@table town_place: in | the | help={helper=town_folk} | look1={spot1=town_spot}
  | look2={spot2=town_spot!spot1} | look3={spot3=town_spot!spot1!spot2}
in a busy little town | the town
above a bakery that smelled of bread | the street
in a town with a tall clock tower | the square
in a narrow house on Lantern Street | the street
next door to a toy shop | the town
in an attic over the candle shop | the lane
across from the old theater | the square
at number seven, Cobble Lane | the lane
behind the railway station | the station

@table river_place: in | the | help={helper=river_folk} | look1={spot1=river_spot}
  | look2={spot2=river_spot!spot1} | look3={spot3=river_spot!spot1!spot2}
beside a slow green river | the river
in a mill where the big wheel turned | the mill
in a houseboat on the river | the river
near a pond full of water lilies | the pond
by a brook that never stopped talking | the brook
on a raft tied to a willow | the willow
in a lockkeeper's cottage | the canal
where two streams met | the ford
beside a ferry with a brass bell | the landing

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
octopus | she | her | her | was tidying up her garden
boat builder | he | him | his | was planing a plank
puffin | he | him | his | was brushing his orange feet
walrus | he | him | his | was combing his whiskers
pearl diver | she | her | her | was drying her hair
sandpiper | she | her | her | was chasing the foam

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
fox | she | her | her | was sniffing the air
charcoal burner | he | him | his | was raking his coals
mushroom picker | she | her | her | was filling her apron
elf | he | him | his | was stitching a tiny shoe
mole | he | him | his | was polishing his spectacles
dormouse | she | her | her | was nodding over her tea

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
turkey | he | him | his | was fanning out his tail
beekeeper | she | her | her | was smoking her hives
blacksmith | he | him | his | was cooling a horseshoe
gardener | she | her | her | was leaning on her spade
sheepdog | he | him | his | was counting the lambs
duck | she | her | her | was leading her ducklings

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
mountain guide | she | her | her | was coiling her rope
bell maker | he | him | his | was tuning a cowbell
wild pony | he | him | his | was grazing on the slope
cheese maker | she | her | her | was turning her cheeses
snow fox | she | her | her | was curled up in her tail
dwarf | he | him | his | was sharpening his pick

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
lamplighter | he | him | his | was climbing his ladder
cobbler | he | him | his | was hammering on a sole
fruit seller | she | her | her | was stacking her oranges
organ grinder | he | him | his | was turning his handle
painter | she | her | her | was cleaning her brushes
chimney sweep | he | him | his | was shaking out his brush

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
kingfisher | she | her | her | was watching the water
fisherwoman | she | her | her | was baiting her hook
muskrat | he | him | his | was gnawing on a reed
washerwoman | she | her | her | was wringing out her sheets
lockkeeper | he | him | his | was oiling his gate
basket maker | she | her | her | was splitting her willow twigs

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
under the bell buoy | a sleeping seal
in the captain's old trunk | a moldy map
behind the fish market | a cat with a full belly
in the crow's nest | a strong wind
under the lighthouse steps | a family of terns
among the mussels | a bit of green glass

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
behind the woodpecker's tree | a heap of chips
in the badger's doorway | a draft of cold air
under the raspberry canes | one sticky thumbprint
in the charred stump | a ring of toadstools
beside the deer path | a patch of clover
up in the crooked pine | a squirrel with full cheeks

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
in the apple cellar | a smell of autumn
behind the beehives | a very cross bee
under the scarecrow's hat | a mouse with her babies
in the horse's stall | a heap of straw
beside the duck pond | a wet feather
inside the butter churn | a pat of butter

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
under the shepherd's cloak | a newborn lamb
in the hollow pine | an owl's pellet
beside the frozen spring | a fringe of icicles
behind the cairn | a cold breeze
in the cowshed | a calf with a white star
under the alpine roses | a marmot's burrow

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
in the cobbler's window | a single red shoe
under the theater steps | a torn ticket
behind the bookshop | a crate of old maps
in the church tower | a dozing bat
beside the tram stop | a puddle with a cloud in it
inside the barrel organ | a row of brass pins

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
inside the eel trap | a very angry eel
under the mill wheel | a shower of drops
behind the lock gate | a floating bottle
in the ferryman's basket | half a sandwich
beside the beaver dam | a heap of twigs
among the yellow irises | a moorhen's nest
)";

}  // namespace mr::story
